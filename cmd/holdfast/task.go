package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// newTaskCommand is `holdfast task`.
func newTaskCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "task",
		Short: "Run commands in sessions, one at a time, in order",
		Args:  cobra.ArbitraryArgs,
		RunE:  needSubcommand,
	}
	cmd.AddCommand(newTaskSubmitCommand(a), newTaskGetCommand(a), newTaskListCommand(a), newTaskWaitCommand(a),
		newTaskCancelCommand(a), newTaskLogsCommand(a))
	return cmd
}

// task writes one task.
func (a *app) task(t holdfast.Task) error {
	if a.output == "json" {
		return a.json(t)
	}
	return a.tasks(holdfast.TaskPage{Tasks: []holdfast.Task{t}})
}

// tasks writes a list of them.
func (a *app) tasks(page holdfast.TaskPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Tasks))
	for i, t := range page.Tasks {
		rows[i] = []string{string(t.ID), string(t.State), shownCode(t), ago(t.CreatedAt), commandLine(t)}
	}
	return a.table("ID STATE CODE CREATED COMMAND", rows)
}

func shownCode(t holdfast.Task) string {
	if !t.ProcessEnded {
		return "-"
	}
	return fmt.Sprint(t.ExitCode)
}

func commandLine(t holdfast.Task) string {
	line := strings.Join(append([]string{t.Command}, t.Args...), " ")
	if t.System {
		line = "(preparation) " + line
	}
	if runes := []rune(line); len(runes) > 60 {
		line = string(runes[:59]) + "…"
	}
	return line
}

func newTaskGetCommand(a *app) *cobra.Command {
	return taskCommand(a, "get", "Show a task, and why it ended as it did", func(cmd *cobra.Command, c *client.Client, id holdfast.TaskID) error {
		t, err := c.GetTask(cmd.Context(), id)
		if err != nil {
			return err
		}
		if a.output == "json" {
			return a.json(t)
		}
		return a.table("", describeTask(t))
	})
}

func newTaskCancelCommand(a *app) *cobra.Command {
	return taskCommand(a, "cancel", "End a task; success when it has ended already", func(cmd *cobra.Command, c *client.Client, id holdfast.TaskID) error {
		t, err := c.CancelTask(cmd.Context(), id)
		if err != nil {
			return err
		}
		return a.task(t)
	})
}

// taskCommand makes a command about one task.
func taskCommand(a *app, use, short string, run func(*cobra.Command, *client.Client, holdfast.TaskID) error) *cobra.Command {
	return &cobra.Command{
		Use:   use + " TASK",
		Short: short,
		Args:  exactly("TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("TASK", holdfast.PrefixTask, args[0]); err != nil {
				return err
			}
			c, err := a.patiently()
			if err != nil {
				return err
			}
			return run(cmd, c, holdfast.TaskID(args[0]))
		},
	}
}

// describeTask says everything about a task, by line.
func describeTask(t holdfast.Task) [][]string {
	rows := [][]string{
		{"ID", string(t.ID)},
		{"Session", string(t.Session)},
		{"Creator", dash(t.Creator)},
		{"State", string(t.State)},
		{"Command", commandLine(t)},
		{"Limit", t.Limit.String()},
		{"Exit code", shownCode(t)},
		{"Created", stamp(t.CreatedAt)},
		{"Started", stamp(t.StartedAt)},
		{"Finished", stamp(t.FinishedAt)},
	}
	if t.CancelAsked {
		rows = append(rows, []string{"Cancel", "asked for"})
	}
	if t.Failure != nil {
		rows = append(rows, []string{"Failure", fmt.Sprintf("%s: %s", t.Failure.Reason, t.Failure.Message)})
		for line := range strings.Lines(t.Failure.LogTail) {
			rows = append(rows, []string{"Log", line})
		}
	}
	if c := t.Contrary; c != nil {
		rows = append(rows, []string{"Contrary", fmt.Sprintf("heard at %s, too late to count: ended at %s with code %d", stamp(c.HeardAt), stamp(c.FinishedAt), c.ExitCode)})
	}
	return rows
}

func newTaskListCommand(a *app) *cobra.Command {
	var states []string
	cmd := &cobra.Command{
		Use:   "list SESSION",
		Short: "List a session's tasks, newest first",
		Args:  exactly("SESSION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := holdfast.ListTasks{Session: holdfast.SessionID(args[0]), PageSize: holdfast.MaxPageSize}
			for _, name := range states {
				in.States = append(in.States, holdfast.TaskState(strings.ToUpper(name)))
			}
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var out holdfast.TaskPage
			for {
				page, err := c.ListTasks(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Tasks = append(out.Tasks, page.Tasks...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					return a.tasks(out)
				}
			}
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only these states: queued, running, …")
	return cmd
}

// taskOutput follows a task's output as a process's is followed.
type taskOutput struct{ output }

// run streams the output, and with follow exits with the task's code.
func (o *taskOutput) run(cmd *cobra.Command, c *client.Client, in holdfast.TaskOutput) error {
	ctx, stop := interruptible(cmd)
	defer stop()
	o.stdout, o.stderr = in.StdoutOffset, in.StderrOffset
	t, err := c.StreamTaskOutput(ctx, in, o.take)
	switch {
	case err == nil && in.Follow:
		return o.finishTask(t)
	case err == nil:
		return nil
	}
	switch holdfast.CodeOf(err) {
	case holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.Cancelled:
		var known *client.InterruptedError
		if !errors.As(err, &known) {
			err = &client.InterruptedError{StdoutOffset: o.stdout, StderrOffset: o.stderr, Last: err}
		}
		return hintError{err, fmt.Sprintf("the task goes on: holdfast task wait %s --stdout-offset %d --stderr-offset %d", in.ID, o.stdout, o.stderr)}
	}
	return err
}

// finishTask says how the task ended, by the exit code too.
func (o *taskOutput) finishTask(t holdfast.Task) error {
	if o.app.output == "json" {
		if err := o.record("finished", t); err != nil {
			return err
		}
	}
	switch {
	case t.State == holdfast.TaskSucceeded:
		return nil
	case t.State == holdfast.TaskFailed && t.ProcessEnded && t.ExitCode != 0:
		return exitError{t.ExitCode}
	case t.Failure != nil:
		return hintError{fmt.Errorf("task %s is %s: %s (%s)", t.ID, t.State, t.Failure.Message, t.Failure.Reason), "see more: holdfast task get " + string(t.ID)}
	}
	return fmt.Errorf("the output ended, but task %s is %s", t.ID, t.State)
}

// outputFlags are those of commands that read output.
func outputFlags(cmd *cobra.Command, in *holdfast.TaskOutput) {
	cmd.Flags().Int64Var(&in.StdoutOffset, "stdout-offset", 0, "the first byte of standard output wanted")
	cmd.Flags().Int64Var(&in.StderrOffset, "stderr-offset", 0, "the first byte of standard error wanted")
}

func newTaskWaitCommand(a *app) *cobra.Command {
	in := holdfast.TaskOutput{Follow: true}
	cmd := taskCommand(a, "wait", "Follow a task's output to its end; exits with its code", func(cmd *cobra.Command, c *client.Client, id holdfast.TaskID) error {
		in.ID = id
		return (&taskOutput{output{app: a}}).run(cmd, c, in)
	})
	outputFlags(cmd, &in)
	return cmd
}

func newTaskLogsCommand(a *app) *cobra.Command {
	var in holdfast.TaskOutput
	cmd := taskCommand(a, "logs", "Show a task's output, during and after", func(cmd *cobra.Command, c *client.Client, id holdfast.TaskID) error {
		in.ID = id
		return (&taskOutput{output{app: a}}).run(cmd, c, in)
	})
	cmd.Flags().BoolVarP(&in.Follow, "follow", "f", false, "go on until the task has ended; exits with its code")
	outputFlags(cmd, &in)
	return cmd
}
