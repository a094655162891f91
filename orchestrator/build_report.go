package orchestrator

import (
	"context"
	"fmt"

	"github.com/holdfast-dev/holdfast"
)

// setupEnded is `environment ready` or `failed`, from the builder's guest: it notes how
// the setup ended, once, and the build goes on. Whatever comes of a build that has
// ended, a superseded one's last word among it, changes nothing (contract: B3, E2).
func (s *Service) setupEnded(ctx context.Context, u *unit, e processEnd) (string, error) {
	id := holdfast.BuildID(e.report.RequestID)
	b, found, now, err := lockBuild(ctx, u, id)
	switch {
	case err != nil:
		return "", err
	case !found || b.Sandbox != e.sandbox.ID:
		return "ignored: it is no setup of this instance", nil
	case e.report.Incarnation < e.sandbox.Incarnation:
		return fmt.Sprintf("ignored: incarnation %d is over, %d is current", e.report.Incarnation, e.sandbox.Incarnation), nil
	case b.State != holdfast.BuildBuilding:
		return "ignored: the build is " + string(b.State), nil
	case !b.SetupEnded.IsZero():
		return "ignored: the setup's end is known", nil
	case e.kind != holdfast.ReportSetup.Delivery(e.report.ExitCode):
		return fmt.Sprintf("ignored: it says %s with exit code %d", e.kind, e.report.ExitCode), nil
	}
	b.Process, b.SetupEnded, b.ExitCode, b.LogTail = e.report.Process, now, e.report.ExitCode, e.report.LogTail
	u.soon(func() { s.carryOnBuildSoon(id) })
	return "applied: the setup ended", b.save(ctx, u, now)
}

// isSetup reports whether a process is the setup of a build, by its request id.
func isSetup(report holdfast.ProcessReport) bool {
	return holdfast.CheckID("request_id", holdfast.PrefixBuild, report.RequestID) == nil
}
