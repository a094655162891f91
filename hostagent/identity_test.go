package hostagent

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// beats is a fleet that keeps heartbeats and answers them with an error, if it has one.
type beats struct {
	mu   sync.Mutex
	got  []holdfast.Heartbeat
	fail *holdfast.Error
}

func (f *beats) serve(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		var b holdfast.Heartbeat
		if err == nil && json.Unmarshal(raw, &b) == nil && strings.HasSuffix(r.URL.Path, "/heartbeat") {
			f.got = append(f.got, b)
		}
		if f.fail != nil {
			w.WriteHeader(http.StatusPreconditionFailed)
			_ = json.NewEncoder(w).Encode(f.fail)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// A host that another agent is already does not start: a copied directory says so
// at once, to the person who copied it.
func TestACopyOfAHostDoesNotStart(t *testing.T) {
	fleet := &beats{fail: holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonHostTwin, "empty its directory")}
	b := build(t, newWorld(), t.TempDir(), newClock(), toFleet(fleet.serve(t)))
	err := b.Start(t.Context())
	if holdfast.ReasonOf(err) != holdfast.ReasonHostTwin || !strings.Contains(err.Error(), "empty its directory") {
		t.Errorf("started: %v", err)
	}
	must(t, b.Close(), "close")
}

// A fleet that is not there, cannot, or has the wrong database keeps no host from
// starting: what runs on it goes on.
func TestAFleetThatIsNotThereKeepsNoHostFromStarting(t *testing.T) {
	for _, fail := range []*holdfast.Error{
		holdfast.E(holdfast.Unavailable, holdfast.ReasonStorage, "later"),
		holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonCluster, "another cluster's database"),
	} {
		fleet := &beats{fail: fail}
		start(t, newWorld(), t.TempDir(), newClock(), toFleet(fleet.serve(t)))
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	start(t, newWorld(), t.TempDir(), newClock(), toFleet(gone.URL))
}

// Each run of an agent is another life of the same host, said in every heartbeat,
// and by who answers at its URL; a start is heard before it returns.
func TestEachRunIsAnotherLifeOfTheSameHost(t *testing.T) {
	fleet := &beats{}
	url, dir := fleet.serve(t), t.TempDir()
	var lives []string
	var host holdfast.HostID
	for range 2 {
		b := start(t, newWorld(), dir, newClock(), toFleet(url))
		who, err := b.Identity(t.Context())
		must(t, err, "identity")
		fleet.mu.Lock()
		last := fleet.got[len(fleet.got)-1]
		fleet.mu.Unlock()
		if last.Life != who.Life || last.Host != who.Host || who.Life == "" || slices.Contains(lives, who.Life) || host != "" && who.Host != host {
			t.Errorf("it is %+v, its heartbeat %+v; before: %s %v", who, last, host, lives)
		}
		host, lives = who.Host, append(lives, who.Life)
		o := b.ensure(b.level(1, 1, holdfast.DesiredAbsent), holdfast.InstanceAbsent)
		if o.Life != who.Life {
			t.Errorf("an answer of another life: %q", o.Life)
		}
		must(t, b.Close(), "close")
	}
}

// A host says which images it has ready, where its images can tell.
func TestAHeartbeatNamesTheImagesThatAreReady(t *testing.T) {
	fleet := &beats{}
	start(t, newWorld(), t.TempDir(), newClock(), toFleet(fleet.serve(t)), func(b *bench) {
		b.config.Images = holding{b.config.Images, []string{"base", "debian:bookworm"}}
	})
	fleet.mu.Lock()
	defer fleet.mu.Unlock()
	if first := fleet.got[0]; !slices.Equal(first.Images, []string{"base", "debian:bookworm"}) {
		t.Errorf("it says %v", first.Images)
	}
}

type holding struct {
	Images
	refs []string
}

func (h holding) Held() ([]string, error) { return h.refs, nil }
