// Command holdfast is the server and the command line of Holdfast.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}, os.LookupEnv))
}

// streams are what a command talks through.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run runs one command line and returns its exit code.
func run(ctx context.Context, args []string, std streams, env func(string) (string, bool)) int {
	a := &app{streams: std, env: env}
	root := newRootCommand(a)
	root.SetArgs(args)
	root.SetIn(std.in)
	root.SetOut(std.out)
	root.SetErr(std.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var quiet exitError
	if errors.As(err, &quiet) {
		return quiet.code
	}
	message, next := a.explain(err)
	text := "error: " + message + "\n"
	if next != "" {
		text += "next: " + next + "\n"
	}
	if _, failed := io.WriteString(std.err, text); failed != nil {
		return 1 // nobody reads
	}
	return exitCode(err)
}

// newRootCommand puts the commands together.
func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "holdfast",
		Short:         "Isolated, long-lived sandboxes for agents, on machines you own",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          needSubcommand,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := root.PersistentFlags()
	flags.StringVar(&a.server, "server", "", "the server's URL (default HOLDFAST_SERVER, the configuration file, or "+defaultServer+")")
	flags.StringVar(&a.key, "api-key", "", "the API key (default HOLDFAST_API_KEY, the server's admin.key on its machine, or the configuration file)")
	flags.StringVarP(&a.output, "output", "o", "table", "table or json")
	flags.DurationVar(&a.timeout, "timeout", 0, "for a lifecycle call with all its attempts (default 5m)")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.output != "table" && a.output != "json" {
			return usage("--output is table or json, not %q", a.output)
		}
		if a.timeout < 0 {
			return usage("--timeout is %s; it must not be negative", a.timeout)
		}
		return nil
	}
	root.AddCommand(newSandboxCommand(a), newSessionCommand(a), newCheckpointCommand(a), newEnvCommand(a), newTaskCommand(a), newProjectCommand(a), newKeyCommand(a), newHostCommand(a), newWebhookCommand(a), newHookCommand(a), newEventsCommand(a),
		newServeCommand(), newDoctorCommand(a), newAuditCommand(a), newMCPCommand(a), newRecoverCommand(a), newVersionCommand(a))
	return root
}

// needSubcommand shows what there is, and refuses what there is not.
func needSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("there is no command %q", cmd.CommandPath()+" "+args[0])
	}
	return cmd.Help()
}

// exactly wants the arguments that are named, and says which is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usage("%s is missing", strings.Join(names[len(args):], " "))
		}
		if len(args) > len(names) {
			return usage("%q is one argument too many", args[len(names)])
		}
		return nil
	}
}

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
