package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// newSessionCommand is `holdfast session`.
func newSessionCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "session",
		Aliases: []string{"se"},
		Short:   "Keep durable work: a sandbox in which tasks run one at a time",
		Args:    cobra.ArbitraryArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newSessionCreateCommand(a), newSessionListCommand(a), newSessionGetCommand(a),
		sessionVerb(a, "suspend", "Suspend a session when its running task has ended", "suspended", (*client.Client).SuspendSession),
		sessionVerb(a, "resume", "Resume a suspended session", "", (*client.Client).ResumeSession),
		sessionVerb(a, "delete", "Delete a session in any state; one that is not there is as wanted", "deleted", (*client.Client).DeleteSession),
		newSessionForkCommand(a), newSessionRenameCommand(a), newOperationsCommand(a))
	return cmd
}

type sessionMutation func(*client.Client, context.Context, holdfast.MutateSession) (holdfast.Session, error)

// sessionVerb makes a command that suspends, resumes or deletes; what it does to the
// session gives it --force.
func sessionVerb(a *app, use, short, forced string, call sessionMutation) *cobra.Command {
	var in holdfast.MutateSession
	cmd := &cobra.Command{
		Use:   use + " ID",
		Short: short,
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.ID = holdfast.SessionID(args[0])
			c, err := a.patiently()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			s, err := call(c, ctx, in)
			if err != nil {
				return err
			}
			return a.session(s)
		},
	}
	cmd.Flags().Int64Var(&in.IfGeneration, "if-generation", 0, "act only when the session's generation is this one")
	if forced != "" {
		cmd.Flags().BoolVar(&in.Force, "force", false, "cancel the running task; otherwise it is "+forced+" when that has ended")
	}
	return cmd
}

func newSessionRenameCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rename ID NAME",
		Short: "Give a session another name for people",
		Args:  exactly("ID", "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.patiently()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			s, err := c.RenameSession(ctx, holdfast.RenameSession{ID: holdfast.SessionID(args[0]), Name: args[1]})
			if err != nil {
				return err
			}
			return a.session(s)
		},
	}
}

// session writes one session.
func (a *app) session(s holdfast.Session) error {
	if a.output == "json" {
		return a.json(s)
	}
	return a.sessions(holdfast.SessionPage{Sessions: []holdfast.Session{s}})
}

// sessions writes a list of them.
func (a *app) sessions(page holdfast.SessionPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Sessions))
	for i, s := range page.Sessions {
		rows[i] = []string{string(s.ID), dash(s.Name), dash(s.Environment), sessionState(s), pending(s.Operation), sessionTasks(s), ago(s.CreatedAt)}
	}
	return a.table("ID NAME ENVIRONMENT STATE PENDING TASKS CREATED", rows)
}

// sessionState is the state, with why it is SUSPENDED where no caller asked for it.
func sessionState(s holdfast.Session) string {
	if s.SuspendedBy != "" {
		return string(s.State) + " (" + string(s.SuspendedBy) + ")"
	}
	return string(s.State)
}

// sessionTasks says how many tasks a session has to do.
func sessionTasks(s holdfast.Session) string {
	running := 0
	if s.Running != "" {
		running = 1
	}
	if running+s.Queued == 0 {
		return "-"
	}
	return fmt.Sprintf("%d running, %d queued", running, s.Queued)
}
