package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/injection"
)

// injected are the settings of audit --inject.
type injected struct {
	on            bool
	runtime       string
	runtimeBinary string
	guestBinary   string
	atOnce        int
}

func (i *injected) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&i.on, "inject", false, "run every cell for real: faults against throwaway systems of this program's own, on this machine")
	f.StringVar(&i.runtime, "runtime", "simulated", "of the throwaway systems: simulated, or runc, as root")
	f.StringVar(&i.runtimeBinary, "runtime-binary", "runc", "the OCI runtime's program")
	f.StringVar(&i.guestBinary, "guest-binary", "", "the guest agent's program; without it the one beside holdfast")
	f.IntVar(&i.atOnce, "at-once", 6, "experiments at the same time")
}

// inject runs the matrix and prints what was seen; a cell that did not hold is exit
// code 1.
func (a *app) inject(cmd *cobra.Command, in injected) error {
	if in.atOnce < 1 || in.atOnce > 64 {
		return usageError{fmt.Errorf("--at-once %d: 1 to 64 are possible", in.atOnce)}
	}
	report, err := injection.Run(cmd.Context(), injection.Config{
		Runtime: in.runtime, RuntimeBinary: in.runtimeBinary, GuestBinary: in.guestBinary, AtOnce: in.atOnce,
	})
	if err != nil {
		return err
	}
	if a.output == "json" {
		var text []byte
		if text, err = json.MarshalIndent(report, "", "  "); err == nil {
			err = write(a.out, append(text, '\n'))
		}
	} else {
		err = a.section(injectedSection(report))
	}
	if err != nil {
		return err
	}
	failed, all := report.Failed(), len(report.Results)+len(report.Missing)
	summary := fmt.Sprintf("%d cells, %d held, %d failed, in %s, on the runtime %s\n", all, all-failed, failed, report.Took.Round(time.Second), report.Runtime)
	if err := write(a.err, []byte(summary)); err != nil {
		return err
	}
	if failed > 0 {
		return hintError{errors.New("the matrix does not hold"), "run it again with --at-once 1 if this machine is busy; what fails then is a bug: please report it"}
	}
	return nil
}

func injectedSection(report injection.Report) section {
	s := section{title: "What was done to each message, and what was seen", header: []string{"HOP", "MESSAGE", "CELL", "DONE", "SEEN", "TOOK", "HELD"}}
	for _, r := range report.Results {
		held, saw := "yes", r.Saw
		if r.Failure != "" {
			held, saw = "NO", r.Failure
		}
		s.rows = append(s.rows, []string{dash(r.Hop), r.Message, string(r.Cell), r.Did, oneLine(saw), r.Took.Round(10 * time.Millisecond).String(), held})
	}
	for _, m := range report.Missing {
		s.rows = append(s.rows, []string{"-", m, "-", "there is no experiment for it", "-", "-", "NO"})
	}
	return s
}
