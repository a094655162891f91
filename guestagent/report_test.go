package guestagent_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
)

// sent is one post that a guest made.
type sent struct {
	id, kind string
	report   holdfast.ProcessReport
}

// contract: B2, B5, B6: the end of a process that was to be reported is told at once,
// under one id however often it is sent, and that of any other is nobody's business.
func TestB2_TheEndOfAProcessIsReportedOnceUnderOneID(t *testing.T) {
	var mu sync.Mutex
	var posts []sent
	a := start(t, func(c *guestagent.Config) {
		c.Guest.CallbackURL = "http://home"
		c.TelemetryEvery = -1
		c.HTTP = &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			var envelope struct {
				Type string          `json:"type"`
				Data json.RawMessage `json:"data"`
			}
			raw, err := io.ReadAll(r.Body)
			if err == nil {
				err = json.Unmarshal(raw, &envelope)
			}
			if err != nil {
				t.Error(err)
			}
			p := sent{id: r.Header.Get("Webhook-Id"), kind: envelope.Type}
			if p.kind == string(holdfast.DeliveryReady) {
				return answer(r, 204)
			}
			if err := json.Unmarshal(envelope.Data, &p.report); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			posts = append(posts, p)
			if len(posts) == 1 {
				return nil, errors.New("lost")
			}
			return answer(r, 204)
		})}
	})
	of := func(request string) (of []sent) {
		mu.Lock()
		defer mu.Unlock()
		for _, p := range posts {
			if p.report.RequestID == request {
				of = append(of, p)
			}
		}
		return of
	}
	script := func(request, script string, report holdfast.ReportKind) holdfast.Process {
		return a.start(t, holdfast.StartProcess{RequestID: request, Command: "sh", Args: []string{"-c", script}, Report: report})
	}
	p := script("first", "echo out; echo err >&2; exit 7", holdfast.ReportTask)
	eventually(t, "the lost report is sent again", func() bool { return len(of("first")) == 2 })
	for _, got := range of("first") {
		r := got.report
		if got.kind != string(holdfast.DeliveryTaskComplete) || got.id == "" || got.id != of("first")[0].id {
			t.Errorf("%+v", got)
		}
		if r.Process != p.ID || r.ExitCode != 7 || r.Incarnation != 3 || r.StartedAt.IsZero() || r.FinishedAt.Before(r.StartedAt) || r.LogTail != "err\n" {
			t.Errorf("%+v", r)
		}
	}
	script("good", "echo built", holdfast.ReportSetup)
	script("bad", "exit 1", holdfast.ReportSetup)
	script("other", "exit 0", holdfast.ReportNone)
	eventually(t, "both setups are reported", func() bool { return len(of("good")) == 1 && len(of("bad")) == 1 })
	if good, bad := of("good")[0], of("bad")[0]; good.kind != string(holdfast.DeliverySetupReady) || bad.kind != string(holdfast.DeliverySetupFailed) ||
		good.report.LogTail != "built\n" || good.id == bad.id {
		t.Errorf("%+v and %+v", good, bad)
	}
	if again := script("first", "echo out; echo err >&2; exit 7", holdfast.ReportTask); again.ID != p.ID || len(of("first")) != 2 || len(of("other")) != 0 {
		t.Errorf("a repeat is %+v, and there are %d reports of it, %d of what was not to be told", again, len(of("first")), len(of("other")))
	}
	if _, err := a.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "true", Report: holdfast.ReportTask}); holdfast.CodeOf(err) != holdfast.InvalidArgument {
		t.Errorf("a report about nothing that has a name: %v", err)
	}
}
