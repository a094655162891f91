package orchestrator

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/store"
)

// processReported is H5: the end of a process that the orchestrator started, from
// the guest that ran it. It is counted once, and everything that it brings is in the
// transaction that counts it (contract: B3, B4).
func (s *Service) processReported(ctx context.Context, d delivery.Received, kind holdfast.DeliveryKind) error {
	var report holdfast.ProcessReport
	if err := json.Unmarshal(d.Body, &report); err != nil {
		return fmt.Errorf("%w: %w", delivery.ErrMalformed, err)
	}
	if d.Source != delivery.InstanceSource(string(report.Instance), report.Incarnation) {
		return fmt.Errorf("%w: the report is about another boot than the one that signed it", delivery.ErrMalformed)
	}
	report.LogTail = tidy(report.LogTail)
	return s.deliver(ctx, d, "applied", func(tx store.Tx, _ time.Time) (string, error) {
		r, found, now, err := lockByInstance(ctx, tx, report.Instance)
		if err != nil {
			return "", err
		}
		if !found || report.Incarnation > r.Incarnation {
			return "", errNotKnownYet
		}
		return s.processEnded(ctx, tx.(*unit), now, processEnd{sandbox: r, kind: kind, report: report})
	})
}

// processEnd is a process that the orchestrator started and that has ended, as its guest
// reports it. The sandbox's row is locked; the boot may be an earlier one.
type processEnd struct {
	sandbox row
	kind    holdfast.DeliveryKind
	report  holdfast.ProcessReport
}

// processEnded says what it did, for operators. Whose process it is, its request id
// tells.
func (s *Service) processEnded(ctx context.Context, u *unit, _ time.Time, e processEnd) (string, error) {
	if e.kind == holdfast.DeliveryTaskComplete {
		return s.taskReported(ctx, u, e)
	}
	if isSetup(e.report) {
		return s.setupEnded(ctx, u, e)
	}
	return "ignored: nothing waits for it", nil
}

// tidy makes of what a guest wrote what any database takes.
func tidy(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}
