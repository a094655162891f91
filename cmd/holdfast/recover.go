package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/server"
)

// newRecoverCommand is `holdfast recover`.
func newRecoverCommand(a *app) *cobra.Command {
	var config server.Config
	var forget, list bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Say that the databases were restored from a backup",
		Long: `Say that the databases were restored from a backup: run it on them before the servers start on them again.

From then on the orders of whatever still runs on the old databases are refused; what hosts have and the databases have
lost is taken up again; and instances that the databases do not know are kept, and listed, until you say with
--forget-unknown that they are nobody's.

With SQLite the server of the data directory has to be stopped; with --database the replicas may run. Where orchestrator
and fleet have data directories of their own, run it on both.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The server's file has settings that are none of this command's.
			env := func(name string) (string, bool) {
				value, ok := os.LookupEnv(name)
				return value, ok && name != "HOLDFAST_CONFIG"
			}
			if err := fillFlags(cmd.Flags(), "", env); err != nil {
				return usageError{err}
			}
			word := server.WordRecover
			switch {
			case forget && list:
				return usage("--list only looks, and --forget-unknown does not: give one of them")
			case forget:
				word = server.WordForget
			case list:
				word = server.WordList
			}
			got, err := server.Recover(cmd.Context(), config, word, time.Now())
			if err != nil {
				return err
			}
			return a.recovered(got, word)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&config.DataDir, "data-dir", defaultDataDir(), "the server's data directory")
	flags.StringVar(&config.Database, "database", "", "postgres://… of the servers; with a password, better as HOLDFAST_DATABASE")
	flags.BoolVar(&forget, "forget-unknown", false, "say that instances which the databases do not know are nobody's: they are ended")
	flags.BoolVar(&list, "list", false, "say nothing: list whose the databases are, and the instances that they do not know")
	return cmd
}

// recovered prints what holds now, and what to do next.
func (a *app) recovered(got server.Recovery, word server.Word) error {
	if a.output == "json" {
		return a.json(got)
	}
	for _, db := range got.Databases {
		if _, err := fmt.Fprintf(a.out, "the %s's database is cluster %s's, epoch %d\n", db.Party, db.Cluster, db.Epoch); err != nil {
			return err
		}
	}
	for _, seen := range got.Unknown {
		if _, err := fmt.Fprintf(a.out, "unknown: instance %s of %s on %s, %s\n", seen.Instance, seen.Owner, seen.Host, seen.State); err != nil {
			return err
		}
	}
	next := map[server.Word]string{
		server.WordRecover: "start the servers; once they have asked the hosts, list with holdfast recover --list what the databases do not know",
		server.WordForget:  "what is unknown is ended by the servers' next sweeps",
		server.WordList:    fmt.Sprintf("%d instances are unknown", len(got.Unknown)),
	}[word]
	_, err := fmt.Fprintln(a.out, next)
	return err
}
