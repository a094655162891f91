package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// Rows that were copied are ones that the parties could have written: what counts
// them counts them, and no sweep finds anything to do about them.
func TestSweepsFindNothingToDoAboutCopies(t *testing.T) {
	for _, e := range []engine{{name: "SQLite"}, {name: "PostgreSQL"}} {
		t.Run(e.name, func(t *testing.T) {
			if e.name == "PostgreSQL" {
				e.postgres = testenv.SharedPostgres(t)
			}
			err := e.with(t.Context(), func(p *place) (err error) {
				if err := fillSuspended(t.Context(), p, 50); err != nil {
					return err
				}
				host := newStubHost()
				if host.suspended, err = instancesIn(t.Context(), p); err != nil {
					return err
				}
				if len(host.suspended) != 51 {
					t.Errorf("%d instances, want 51", len(host.suspended))
				}
				c, err := openPlane(t.Context(), p, host)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, c.close()) }()
				before, err := number(t.Context(), c.dbs[1], `SELECT CAST(SUM(revision) AS BIGINT) FROM instance`)
				if err != nil {
					return err
				}
				acted, err := c.sweep(t.Context())
				if err != nil {
					return err
				}
				if !slices.Equal(acted, []string{fleet.SweepInstances}) { // which goes by hosts, and looks at each
					t.Errorf("these sweeps found something: %q", acted)
				}
				after, err := number(t.Context(), c.dbs[1], `SELECT CAST(SUM(revision) AS BIGINT) FROM instance`)
				if before != after {
					t.Errorf("instances have changed: revisions add up to %d, then to %d", before, after)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAMissedGoalIsSaid(t *testing.T) {
	for _, c := range []struct {
		line line
		want string
	}{
		{line{goal: ">= 2.00", met: true}, "met"},
		{line{goal: ">= 2.00"}, "MISSED"},
		{line{}, "-"},
	} {
		var text strings.Builder
		out := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
		c.line.print(out)
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Fields(text.String()); got[len(got)-1] != c.want {
			t.Errorf("%+v prints %q, want it to end with %s", c.line, text.String(), c.want)
		}
	}
}

func TestANameThatIsNoMeasurementIsRefused(t *testing.T) {
	if _, err := chosen("idle,sweep"); err == nil || !strings.Contains(err.Error(), "sweeps-sqlite") {
		t.Errorf("%v, want it to list the names", err)
	}
	if got, err := chosen("idle,runc"); err != nil || len(got) != 2 || got[0].name != "idle" {
		t.Errorf("%v, %v", got, err)
	}
}
