package injection

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/transport"
)

// contract: F2
func TestF2_EveryCellOfTheMatrixHolds(t *testing.T) {
	report, err := Run(t.Context(), Config{Runtime: "simulated", TempDir: t.TempDir(), Progress: func(r Result) {
		t.Logf("%s %s %s: %s %s (%s)", r.Hop, r.Message, r.Cell, r.Saw, r.Failure, r.Took)
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range report.Missing {
		t.Errorf("no experiment for %s", m)
	}
	for _, r := range report.Results {
		if r.Failure != "" {
			t.Errorf("%s %s, %s: %s", r.Hop, r.Message, r.Cell, r.Failure)
		}
	}
	if report.Failed() != 0 {
		t.Errorf("%d of %d failed", report.Failed(), len(report.Results))
	}
}

// picked is the experiments of one message's cell.
func picked(t *testing.T, message string, cell Cell) []experiment {
	t.Helper()
	all := slices.DeleteFunc(experiments(), func(e experiment) bool { return e.message != message || e.cell != cell })
	if len(all) == 0 {
		t.Fatalf("there is no experiment for %s, %s", message, cell)
	}
	return all
}

func TestF2_ACellWithoutAnExperimentFails(t *testing.T) {
	without := slices.DeleteFunc(experiments(), func(e experiment) bool {
		return e.hop == "H8" && e.cell == Late || e.message == "fleet host"
	})
	matrix, err := matrixOf(t.Context(), Config{Runtime: "simulated", TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"H8 instance.exited: late", "fleet host: first contact", "instance.exited: late"}
	got := missing(matrix, without)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("missing %q, want %q", got, want)
	}
	if failed := (Report{Missing: got}).Failed(); failed != len(want) {
		t.Errorf("%d count as failed, want %d", failed, len(want))
	}
	if left := missing(matrix, experiments()); len(left) != 0 {
		t.Errorf("with all experiments there is missing %q", left)
	}
}

func TestF2_AFaultThatNeverFiresFails(t *testing.T) {
	report, err := run(t.Context(), Config{Runtime: "simulated", TempDir: t.TempDir()}, []experiment{{message: "nothing", cell: Twice, run: func(l *lab) (string, error) {
		fault := overlap(l.wire, about{path: "/a/path/that/nobody/calls"})
		sb, err := l.create("one")
		return seen(errors.Join(err, l.once(sb), l.fired(fault)), "one")
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(report.Results[0].Failure, errNeverFired.Error()) {
		t.Errorf("it failed for %q", report.Results[0].Failure)
	}
}

// forgetful drops what makes a message the same one twice.
type forgetful struct {
	next     http.RoundTripper
	path     string
	from, to string
}

func (f forgetful) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.Path, f.path) {
		return f.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	body = bytes.ReplaceAll(body, []byte(f.from), []byte(f.to))
	r = r.Clone(r.Context())
	r.Body, r.GetBody, r.ContentLength = io.NopCloser(bytes.NewReader(body)), nil, int64(len(body))
	return f.next.RoundTrip(r)
}

// Each of these systems is wrong in one way, and the cell that is about it says so.
func TestF2_AWrongSystemFailsItsCell(t *testing.T) {
	for _, c := range []struct {
		what, message string
		cell          Cell
		wrong         forgetful
		says          string
	}{
		{"a start of a process without its request id", "process and file calls", Twice, forgetful{path: "/processes/start", from: `"request_id":"once",`}, "2 processes"},
		{"a host that is told nothing of generations", "EnsureInstance", Late, forgetful{path: "/host/ensure", from: `"generation":1`, to: `"generation":9`}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			report, err := run(t.Context(), Config{Runtime: "simulated", TempDir: t.TempDir(), sabotage: func(next http.RoundTripper) http.RoundTripper {
				wrong := c.wrong // there are several systems at a time
				wrong.next = next
				return wrong
			}}, picked(t, c.message, c.cell))
			if err != nil {
				t.Fatal(err)
			}
			if report.Failed() == 0 {
				t.Fatalf("nothing failed: %+v", report.Results)
			}
			for _, r := range report.Results {
				if r.Failure != "" && !strings.Contains(r.Failure, c.says) {
					t.Errorf("%s failed for %q, want %q", r.Cell, r.Failure, c.says)
				}
			}
		})
	}
}

func TestTheWireKeepsWhatPassesAndSendsItAgain(t *testing.T) {
	var got []string
	w := &wire{next: roundTripper(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		got = append(got, r.URL.Path+" "+string(body)+" "+r.Header.Get("X"))
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("done")), Request: r}, err
	})}
	kept, dropped := w.tape(about{"/a", "1"}), w.times(1, transport.Drop, about{"/b", ""})
	send := func(path, body string) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x"+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("X", "y")
		res, err := w.RoundTrip(r)
		if err != nil {
			return err
		}
		return res.Body.Close()
	}
	if err := errors.Join(send("/a", "1"), send("/a", "2")); err != nil {
		t.Fatal(err)
	}
	if err := send("/b", "x"); err == nil {
		t.Error("what was to be dropped arrived")
	}
	if err := send("/b", "x"); err != nil {
		t.Errorf("the second of them did not: %v", err)
	}
	status, answer, err := w.again(t.Context(), kept, 0)
	if err != nil || status != 200 || answer != "done" || kept.count() != 1 || dropped.count() != 1 {
		t.Errorf("again: %d %q %v; kept %d, dropped %d", status, answer, err, kept.count(), dropped.count())
	}
	if want := []string{"/a 1 y", "/a 2 y", "/b x y", "/a 1 y"}; !slices.Equal(got, want) {
		t.Errorf("arrived %q, want %q", got, want)
	}
	if _, _, err := w.again(t.Context(), kept, 1); err == nil {
		t.Error("what never passed was sent again")
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
