package guestagent_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
)

// What is kept of ended processes is bounded, and a request id is known for
// longer: its late repeat starts nothing (traps T20, T45).
func TestT20_OldProcessesGoAndTheirRequestIDsStay(t *testing.T) {
	a := start(t, func(c *guestagent.Config) { c.Root, c.Executor = t.TempDir(), guestagent.NewSimulatedExecutor(nil) })
	const more = 20
	var first holdfast.Process
	for i := range guestagent.KeptProcesses + more {
		p := a.start(t, holdfast.StartProcess{RequestID: fmt.Sprint("r", i), Command: "exit", Args: []string{"3"}})
		eventually(t, "it ended", func() bool {
			got, err := a.Processes.GetProcess(t.Context(), p.ID)
			return err == nil && got.State == holdfast.ProcessExited
		})
		if i == 0 {
			first = p
		}
	}
	eventually(t, "the oldest are gone", func() bool {
		dirs, err := os.ReadDir(a.spool)
		list, listErr := a.Processes.ListProcesses(t.Context())
		return err == nil && listErr == nil && len(list) == guestagent.KeptProcesses && len(dirs) == len(list)
	})
	_, err := a.Processes.GetProcess(t.Context(), first.ID)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	again := a.start(t, holdfast.StartProcess{RequestID: "r0", Command: "exit", Args: []string{"3"}})
	if again.ID != first.ID || again.State != holdfast.ProcessExited || again.ExitCode != 3 {
		t.Errorf("%+v", again)
	}
}

func TestProcessesLeaveNoDescriptorBehind(t *testing.T) {
	a := start(t, nil)
	open := func() int { return len(entries(t, "/proc/self/fd")) }
	a.wait(t, a.sh(t, "true").ID)
	before := open()
	for i := range 50 {
		in := holdfast.StartProcess{Command: "sh", Args: []string{"-c", "echo x; exit 1"}, Stdin: i%2 == 0}
		if i%5 == 0 {
			in.Terminal = &holdfast.TerminalSize{Columns: 80, Rows: 24}
		}
		a.wait(t, a.start(t, in).ID)
		if _, err := a.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "/etc/passwd", Stdin: true}); err == nil {
			t.Fatal("it was executed")
		}
	}
	eventually(t, "as many files are open as before", func() bool { return open() <= before })
}
