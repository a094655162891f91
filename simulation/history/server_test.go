package history

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/server"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/transport"
)

// retention is how long the servers here keep suspended sandboxes: some end while
// the clients call.
const retention = 3 * time.Second

// start starts a process of the given configuration; the parties' hops have faults.
func start(t *testing.T, config server.Config) *server.Server {
	t.Helper()
	config.DataDir = t.TempDir()
	config.Listen, config.Runtime, config.InsecureNoAuth = "127.0.0.1:0", "simulated", true
	config.Logger = slog.New(slog.DiscardHandler)
	config.ClaimTTL, config.Retention, config.SweepEvery = 2*time.Second, retention, 100*time.Millisecond
	config.Capacity = holdfast.Capacity{CPUMillis: 1 << 20, MemoryBytes: 1 << 40, Instances: 1 << 20}
	s, err := server.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// cluster is what a history's clients call.
type cluster struct {
	servers []rpc.Services
	edges   []*transport.Faulty
	hops    *Hops
}

func (c *cluster) add(s *server.Server) {
	api, faulty := Edge(s.URL())
	c.servers, c.edges = append(c.servers, api), append(c.edges, faulty)
}

// onSQLite is one process of every role.
func onSQLite(t *testing.T, seed uint64) *cluster {
	c := &cluster{hops: &Hops{Seed: seed}}
	c.add(start(t, server.Config{Faults: c.hops.Plan}))
	return c
}

// onPostgres is two orchestrators that share a database, and a fleet and a host.
func onPostgres(t *testing.T, seed uint64) *cluster {
	postgres := testenv.SharedPostgres(t)
	key := filepath.Join(t.TempDir(), "cluster.key")
	if err := os.WriteFile(key, []byte("a key that is long enough for a test"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := postgres.URL(postgres.Database(t))
	c := &cluster{hops: &Hops{Seed: seed}}
	one := start(t, server.Config{Faults: c.hops.Plan, Database: url, ClusterKeyFile: key})
	c.add(one)
	c.add(start(t, server.Config{Faults: c.hops.Plan, Database: url, ClusterKeyFile: key,
		Roles: []server.Role{server.Orchestrator}, FleetURL: one.URL()}))
	return c
}
