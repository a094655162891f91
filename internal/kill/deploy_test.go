package kill

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/cluster"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// deployment is the real programs at work, to be struck at.
type deployment struct {
	servers  []*testenv.Server
	apis     []*client.Client // one of each orchestrator
	postgres *testenv.Postgres
	database string   // PostgreSQL's URL; "": SQLite
	stores   []string // data directories of orchestrator and fleet, on SQLite
	dirs     []string // all data directories
	blobs    string   // the blob store of all
	disks    map[*testenv.Server]*disk
	stop     func() error
}

// flags are every server's: claims and sweeps as short as a round is, and room for
// all that its callers keep.
func flags() []string {
	return []string{"--claim-ttl", claimTTL.String(), "--sweep-every", "1s", "--capacity-cpu", "1000000"}
}

// kind is a way to deploy.
type kind struct {
	name  string
	start func(t *testing.T, dir string) (*deployment, error)
	menu  menu
}

// kinds are the deployments that take turns.
func kinds() []kind {
	return []kind{
		{"one process on SQLite", startOne, menu{aGuest: 4}},
		{"three processes on SQLite", startThree, menu{aGuest: 4}},
		{"seven processes on PostgreSQL", startSeven, menu{aGuest: 4, aDatabase: 2}},
		{"two processes with disks of their own", startUnplugged, menu{aGuest: 2, aPower: 10, aFullDisk: 3}},
	}
}

func startOne(t *testing.T, dir string) (*deployment, error) {
	return startSQLite(t, dir, map[string]part{"server": {}})
}

func startThree(t *testing.T, dir string) (*deployment, error) {
	key := filepath.Join(dir, "cluster.key")
	if err := os.WriteFile(key, []byte(rand.Text()+rand.Text()+"\n"), 0o600); err != nil {
		return nil, err
	}
	orchestrator, fleet := testenv.FreeAddress(t), testenv.FreeAddress(t)
	role := func(listen string, args ...string) part {
		return part{listen: listen, args: append(args, "--cluster-key-file", key)}
	}
	return startSQLite(t, dir, map[string]part{
		"orchestrator": role(orchestrator, "--roles", "orchestrator", "--fleet-url", "http://"+fleet),
		"fleet":        role(fleet, "--roles", "fleet", "--orchestrator-url", "http://"+orchestrator),
		"host":         role("", "--roles", "host", "--orchestrator-url", "http://"+orchestrator, "--fleet-url", "http://"+fleet),
	})
}

// part is one server of a deployment on SQLite.
type part struct {
	listen string // "": any address that is free
	args   []string
	disk   *disk // nil: the machine's
}

// startSQLite starts servers by name, with their arguments.
func startSQLite(t *testing.T, dir string, servers map[string]part) (*deployment, error) {
	d := &deployment{disks: map[*testenv.Server]*disk{}, blobs: filepath.Join(dir, "blobs")}
	d.stop = func() error {
		var errs []error
		for _, s := range d.servers {
			errs = append(errs, s.Stop())
		}
		return errors.Join(errs...)
	}
	secret := "hf_" + strings.ToLower(rand.Text()+rand.Text()[:6])
	front := ""
	for _, name := range []string{"server", "fleet", "host", "orchestrator"} {
		p, ok := servers[name]
		if !ok {
			continue
		}
		s := &testenv.Server{Name: name, DataDir: filepath.Join(dir, name), Program: filepath.Join(testenv.Binaries(t), "holdfast"),
			Listen: p.listen, Args: append(append(flags(), "--blobs", d.blobs), p.args...), LogFile: filepath.Join(dir, name+".log")}
		if p.listen == "" {
			s.Listen = testenv.FreeAddress(t)
		}
		if p.disk != nil {
			s.DataDir = filepath.Join(p.disk.dir, "data")
			d.disks[s] = p.disk
		}
		if err := os.Mkdir(s.DataDir, 0o700); err != nil {
			return nil, err
		}
		d.dirs, d.servers = append(d.dirs, s.DataDir), append(d.servers, s)
		if name != "host" {
			d.stores = append(d.stores, s.DataDir)
		}
		if name == "server" || name == "orchestrator" {
			front = s.URL()
			if err := os.WriteFile(filepath.Join(s.DataDir, "admin.key"), []byte(secret+"\n"), 0o600); err != nil {
				return nil, err
			}
		}
	}
	for _, s := range d.servers {
		if disk := d.disks[s]; disk != nil { // what is there before the first start stays
			if err := disk.sync(); err != nil {
				return d, err
			}
		}
		if err := s.Start(); err != nil {
			return d, err
		}
	}
	api, err := dial(front, secret)
	d.apis = []*client.Client{api}
	return d, err
}

func startSeven(t *testing.T, dir string) (*deployment, error) {
	testenv.RequirePostgres(t)
	c, err := cluster.Start(t.Context(), cluster.Config{Binaries: testenv.Binaries(t), Directory: dir, Flags: flags()})
	if err != nil {
		return nil, err
	}
	d := &deployment{servers: c.All(), postgres: c.Postgres, database: c.Database, dirs: c.DataDirs(), blobs: filepath.Join(dir, "blobs"), stop: c.Stop}
	for _, o := range c.Orchestrators {
		api, err := dial(o.URL(), c.Key)
		if err != nil {
			return d, err
		}
		d.apis = append(d.apis, api)
	}
	return d, nil
}

// dial gives an attempt longer than anything is stopped, so that a call whose
// server is stopped is answered by it and not overtaken by its repeat.
func dial(url, key string) (*client.Client, error) {
	return client.New(url, client.WithAPIKey(key), client.WithAttemptTimeout(attempt), client.WithOverallTimeout(2*attempt))
}

const attempt = 20 * time.Second

// logs are the ends of all logs.
func (d *deployment) logs() string {
	var out strings.Builder
	for _, s := range d.servers {
		fmt.Fprintf(&out, "== %s\n%s\n", s.Name, s.Log())
	}
	return out.String()
}

// one calls an orchestrator, each in turn.
func (d *deployment) one(turn int) *client.Client { return d.apis[turn%len(d.apis)] }

// bounded is a context for one call of ours.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*attempt)
}
