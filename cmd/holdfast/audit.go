package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newAuditCommand(a *app) *cobra.Command {
	var in injected
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who notices what, by when, as each running party says itself",
		Long: `Show, gathered from the registry of each running party (the orchestrator that answers, the fleet that it reaches, each
host): what happens on each hop when a message comes twice, late or never; who notices what got stuck or died, by when;
and when each of the sweeps that do so last ran, and what it did.

Exits 1 when a cell is empty, a party was not reached, or a sweep is late. A host that is gone for good is left out once
it is retired.

With --inject no server is asked. For each cell a throwaway system is started in this process, on a temporary directory
and loopback: the same parties, with this program's code. The fault happens there for real (a message twice, late or
never; a reporter that dies before it was heard), and what came of it is printed. Sweeps run three times a second there
instead of once a minute, and clocks are put forward where deadlines are long. Exits 1 when a cell did not hold, has no
experiment, or its fault never fired.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in.on {
				return a.inject(cmd, in)
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			matrix, err := c.GetMatrix(cmd.Context())
			if err != nil {
				return err
			}
			return a.audit(matrix)
		},
	}
	in.flags(cmd)
	return cmd
}

// audit prints the matrix; that something is wrong with it is exit code 1.
func (a *app) audit(matrix holdfast.AuditMatrix) error {
	faults := matrix.Faults()
	if a.output == "json" {
		if err := a.json(matrix); err != nil {
			return err
		}
	} else {
		for _, s := range auditSections(matrix) {
			if err := a.section(s); err != nil {
				return err
			}
		}
	}
	if len(faults) == 0 {
		return nil
	}
	text := ""
	for _, f := range faults {
		text += "fault: " + oneLine(f) + "\n"
	}
	if err := write(a.err, []byte(text)); err != nil {
		return err
	}
	return hintError{fmt.Errorf("the audit is not whole: faults: %d", len(faults)),
		"read the log of a party that was not reached or whose sweep is late; an empty cell is a bug of its build: please report it"}
}
