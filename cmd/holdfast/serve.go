package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/server"
)

// newServeCommand is `holdfast serve`.
func newServeCommand() *cobra.Command {
	var config server.Config
	var roles []string
	var file, logFormat string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server: orchestrator, fleet and host agent, or some of them",
		Long: `Run the server: orchestrator, fleet and host agent in one process (the default), or some of them with --roles.

Every flag can also be given as HOLDFAST_… in the environment (--data-dir is HOLDFAST_DATA_DIR), or as a key of the
YAML file that --config names (data-dir: …). A flag wins over the environment, and that over the file.

SIGTERM and SIGINT drain: new lifecycle calls get UNAVAILABLE, running attempts finish. Sandboxes run on.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := fillFlags(cmd.Flags(), file, os.LookupEnv); err != nil {
				return usageError{err}
			}
			for _, r := range roles {
				config.Roles = append(config.Roles, server.Role(r))
			}
			logger, err := newLogger(logFormat)
			if err != nil {
				return usageError{err}
			}
			config.Logger = logger
			return serve(cmd, config)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&roles, "roles", []string{"orchestrator", "fleet", "host"}, "what this process is")
	flags.StringVar(&config.Listen, "listen", "127.0.0.1:7420", "address of the API and the other parties' calls")
	flags.StringVar(&config.DataDir, "data-dir", defaultDataDir(), "directory of everything durable")
	flags.StringVar(&config.Database, "database", "", "postgres://… that several servers share; with a password, better as HOLDFAST_DATABASE (default SQLite in the data directory)")
	flags.StringVar(&config.AdvertiseURL, "advertise-url", "", "where the other parties reach this process (default http://LISTEN)")
	flags.StringVar(&config.OrchestratorURL, "orchestrator-url", "", "the orchestrator, where it is not this process; several replicas with commas")
	flags.StringVar(&config.FleetURL, "fleet-url", "", "the fleet service, where it is not this process; several replicas with commas")
	flags.StringVar(&config.ClusterKeyFile, "cluster-key-file", "", "the key by which the parties know each other (default DATA_DIR/cluster.key)")
	flags.StringVar(&config.Runtime, "runtime", "runc", "what runs instances: runc or simulated")
	flags.StringVar(&config.RuntimeBinary, "runtime-binary", "runc", "the OCI runtime's program")
	flags.StringVar(&config.Blobs, "blobs", "", "where checkpoints are kept: a directory, or s3://BUCKET[/PREFIX][?endpoint=URL&region=REGION]; every host and orchestrator of one deployment needs the same (default DATA_DIR/blobs)")
	flags.StringVar(&config.LocalImages, "local-images", "", "directory of this host that environments tar:PATH and dir:PATH are below; without it there are none")
	flags.StringVar(&config.GuestBinary, "guest-binary", "", "the guest agent's program (default holdfast-guest beside this one)")
	flags.BoolVar(&config.InsecureNoAuth, "insecure-no-auth", false, "let calls without an API key in; on a loopback address only")
	flags.BoolVar(&config.AllowPrivateWebhooks, "allow-private-webhooks", false, "let webhooks reach loopback, private and other addresses that are not public")
	flags.Int64Var(&config.Capacity.CPUMillis, "capacity-cpu", 0, "thousandths of a processor to give to instances (default 8000 for each of the machine's)")
	flags.Int64Var(&config.Capacity.MemoryBytes, "capacity-memory", 0, "bytes of memory to give to instances (default all)")
	flags.Int64Var(&config.Capacity.Instances, "capacity-instances", 0, "instances to hold (default 1000)")
	flags.DurationVar(&config.ClaimTTL, "claim-ttl", 2*time.Minute, "the longest attempt; at most 2m")
	flags.DurationVar(&config.MaxTTL, "max-ttl", holdfast.MaxTTL, "the longest lifetime that a sandbox can be given at a time")
	flags.DurationVar(&config.Retention, "suspended-retention", holdfast.Retention, "how long a suspended sandbox is kept before it is deleted")
	flags.DurationVar(&config.SweepEvery, "sweep-every", 0, "period of all sweeps (default: each its own)")
	flags.DurationVar(&config.HostSuspectAfter, "host-suspect-after", 15*time.Second, "a host's silence until nothing is placed on it")
	flags.DurationVar(&config.HostLostAfter, "host-lost-after", 5*time.Minute, "a host's silence until what has a restart policy is made anew elsewhere")
	flags.DurationVar(&config.HostLossAfter, "host-loss-after", 30*time.Minute, "a host's silence until what it had is given up as lost")
	flags.DurationVar(&config.DrainFor, "drain-for", 30*time.Second, "how long a stop waits for running attempts")
	flags.StringVar(&logFormat, "log-format", "text", "text or json")
	flags.StringVar(&file, "config", "", "YAML file of these flags")
	return cmd
}

// serve runs until it is told to stop or fails.
func serve(cmd *cobra.Command, config server.Config) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	server.SpareProcessor()
	s, err := server.Start(ctx, config)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	lines := []string{"holdfast serves " + roleNames(config) + " at " + s.URL()}
	if key, fresh := s.AdminKey(); fresh {
		lines = append(lines, "admin API key, shown this once and kept in "+filepath.Join(config.DataDir, "admin.key")+": "+key)
	}
	if _, err := fmt.Fprintln(out, strings.Join(lines, "\n")); err != nil {
		return errors.Join(err, s.Shutdown(context.Background()))
	}
	failed := s.Wait(ctx)
	stop() // a second signal ends the process at once
	return errors.Join(failed, s.Shutdown(context.WithoutCancel(cmd.Context())))
}

func roleNames(config server.Config) string {
	names := make([]string, len(config.Roles))
	for i, r := range config.Roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

// fillFlags sets the flags that were not given from the environment, else from
// the file. What the file has and no flag is called is an error.
func fillFlags(flags *pflag.FlagSet, file string, env func(string) (string, bool)) error {
	if file == "" {
		file, _ = env("HOLDFAST_CONFIG")
	}
	values, err := readConfig(file)
	if err != nil {
		return err
	}
	var errs []error
	set := func(f *pflag.Flag, value, from string) {
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", from, err))
		}
	}
	flags.VisitAll(func(f *pflag.Flag) {
		value, inFile := values[f.Name]
		delete(values, f.Name)
		name := "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		switch v, inEnv := env(name); {
		case f.Changed || f.Name == "config" || f.Name == "help":
		case inEnv:
			set(f, v, name)
		case inFile:
			set(f, value.text, fmt.Sprintf("%s:%d", file, value.line))
		}
	})
	for key, value := range values {
		errs = append(errs, fmt.Errorf("%s:%d: there is no setting %q", file, value.line, key))
	}
	return errors.Join(errs...)
}

type setting struct {
	text string
	line int
}

func readConfig(file string) (map[string]setting, error) {
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read --config: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: expected settings such as data-dir: /var/lib/holdfast", file, top.Line)
	}
	values := map[string]setting{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		text := value.Value
		if value.Kind == yaml.SequenceNode {
			var parts []string
			for _, item := range value.Content {
				parts = append(parts, item.Value)
			}
			text = strings.Join(parts, ",")
		}
		if _, twice := values[key.Value]; twice {
			return nil, fmt.Errorf("%s:%d: %s is set twice", file, key.Line, key.Value)
		}
		values[key.Value] = setting{text: text, line: key.Line}
	}
	return values, nil
}

func newLogger(format string) (*slog.Logger, error) {
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, nil)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, nil)), nil
	}
	return nil, fmt.Errorf("--log-format is text or json, not %q", format)
}
