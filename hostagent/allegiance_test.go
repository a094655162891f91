package hostagent

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// trap T52: whom a host obeys is decided by the first order, for ever; of its
// cluster's databases by the one that was recovered last.
func TestT52_WhomAHostObeys(t *testing.T) {
	for name, c := range map[string]struct {
		now    allegiance
		order  order
		want   allegiance
		reason holdfast.Reason
	}{
		"the first order":     {allegiance{}, order{cluster: "a", epoch: 3}, allegiance{"a", 3}, ""},
		"nobody's order":      {allegiance{}, order{}, allegiance{}, holdfast.ReasonCluster},
		"its own":             {allegiance{"a", 3}, order{cluster: "a", epoch: 3}, allegiance{"a", 3}, ""},
		"another's":           {allegiance{"a", 3}, order{cluster: "b", epoch: 9}, allegiance{"a", 3}, holdfast.ReasonCluster},
		"an older database's": {allegiance{"a", 3}, order{cluster: "a", epoch: 2}, allegiance{"a", 3}, holdfast.ReasonStaleEpoch},
		"a recovered one's":   {allegiance{"a", 3}, order{cluster: "a", epoch: 4}, allegiance{"a", 4}, ""},
	} {
		got, err := judgeOrder(c.now, c.order)
		if got != c.want || c.reason == "" && err != nil || c.reason != "" && holdfast.ReasonOf(err) != c.reason {
			t.Errorf("%s: %+v %v, want %+v %s", name, got, err, c.want, c.reason)
		}
	}
}

// trap T52: the highest epoch is remembered over restarts, and an old database's
// order changes nothing, not even an end.
func TestT52_AnOldDatabasesOrderIsRefusedAfterARestartToo(t *testing.T) {
	w, dir, clock := newWorld(), t.TempDir(), newClock()
	b := start(t, w, dir, clock)
	b.ensure(b.level(1, 1, holdfast.DesiredRunning), holdfast.InstanceRunning)
	recovered := b.level(1, 2, holdfast.DesiredRunning)
	recovered.Epoch = 7
	b.ensure(recovered, holdfast.InstanceRunning)
	refuses := func(b *bench) {
		t.Helper()
		old := b.level(1, 3, holdfast.DesiredAbsent)
		if seen := holdfast.AsError(b.refused(old, holdfast.ReasonStaleEpoch)).Details["seen"]; seen != "7" {
			t.Errorf("seen %q, want 7", seen)
		}
		b.get(holdfast.InstanceRunning)
	}
	refuses(b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	refuses(start(t, w, dir, clock))
}

// trap T52: a host that is another cluster's is refused before anything is touched.
func TestT52_AHostOfAnotherClusterIsNotStarted(t *testing.T) {
	dir := t.TempDir()
	b := start(t, newWorld(), dir, newClock())
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	config := b.config
	config.ClusterID = "cl-2"
	a, err := New(config)
	if err == nil {
		t.Fatal("it started", a.Close())
	}
	if !strings.Contains(err.Error(), "cl-1") || !strings.Contains(err.Error(), "restore the database") {
		t.Errorf("it does not say what to do: %v", err)
	}
	config.ClusterID = ""
	if a, err = New(config); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
