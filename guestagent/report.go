package guestagent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
)

// reportEnd tells of a process that ended, within the budget of contract: B5, apart
// from whoever recorded it. A report that does not arrive is found by the
// orchestrator's sweeps, which ask the host.
func (a *Agent) reportEnd(kind holdfast.ReportKind, p holdfast.Process) {
	a.reports.Go(func() {
		if err := a.deliverEnd(a.life, kind, p); err != nil && a.life.Err() == nil {
			a.config.Log.Warn("the report of a process's end did not arrive", "process", p.ID, "error", err)
		}
	})
}

// deliverEnd sends one report. Its id is derived from what it is about, so that the
// end of a process is one event however often it is sent (contract: B2).
func (a *Agent) deliverEnd(ctx context.Context, kind holdfast.ReportKind, p holdfast.Process) error {
	boot := a.config.Guest
	if boot.CallbackURL == "" {
		return nil
	}
	event := kind.Delivery(p.ExitCode)
	body, err := json.Marshal(holdfast.ProcessReport{
		Instance: boot.Instance, Incarnation: boot.Incarnation, Process: p.ID, RequestID: p.RequestID,
		ExitCode: p.ExitCode, StartedAt: p.StartedAt, FinishedAt: p.FinishedAt, LogTail: a.processes.tail(ctx, p),
	})
	if err != nil {
		return fmt.Errorf("report the end of %s: %w", p.ID, err)
	}
	id := delivery.DeriveID(string(kind), string(boot.Instance), boot.Incarnation, p.RequestID)
	sender := delivery.Sender{Client: a.client(a.config.HTTP), Secret: boot.Secret, URL: boot.CallbackURL + "/deliveries", Clock: a.config.Clock, Jitter: a.config.Jitter}
	if err := sender.Send(ctx, delivery.Message{ID: id, Kind: string(event), Body: body}); err != nil {
		return fmt.Errorf("report the end of %s: %w", p.ID, err)
	}
	return nil
}

// tail is the last of what a process wrote: of its standard error, or of its output
// where it wrote no error.
func (s *processes) tail(ctx context.Context, p holdfast.Process) string {
	in := holdfast.ReadOutput{Process: p.ID, StdoutOffset: p.StdoutSize, StderrOffset: max(0, p.StderrSize-holdfast.MaxReportTail)}
	if p.StderrSize == 0 {
		in.StdoutOffset = max(0, p.StdoutSize-holdfast.MaxReportTail)
	}
	var tail []byte
	if _, err := s.reader.Stream(ctx, in, func(c holdfast.OutputChunk) error {
		tail = append(tail, c.Data...)
		return nil
	}); err != nil {
		s.log.Warn("the end of a process's output cannot be read for its report", "process", p.ID, "error", err)
	}
	return string(tail[max(0, len(tail)-holdfast.MaxReportTail):])
}
