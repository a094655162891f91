package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/server"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/transport"
)

// deployment is an orchestrator, a fleet service and some hosts, whose runtime is
// the simulated one, all in this process: the hops between them are the ones that
// processes use, over memory.
type deployment struct {
	*place
	servers []*server.Server // hosts last
	callers []holdfast.Caller
	keys    []string // of each caller
	client  *http.Client
}

func admin() holdfast.Caller {
	return holdfast.Caller{Project: holdfast.ProjectDefault, Name: "admin", Role: holdfast.RoleAdmin}
}

// endless is a capacity that no measurement reaches.
func endless() holdfast.Capacity {
	return holdfast.Capacity{CPUMillis: 1 << 40, MemoryBytes: 1 << 60, Instances: 1 << 30}
}

// silent is the log of what is measured: what matters comes back as an error.
func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

// deploy starts one with so many hosts, and with a project for each of so many callers.
func deploy(ctx context.Context, p *place, hosts, projects int) (_ *deployment, err error) {
	d := &deployment{place: p, client: rpc.NewHTTPClient()}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.stop(ctx))
		}
	}()
	key := filepath.Join(p.dir, "cluster.key")
	if err := os.WriteFile(key, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		return nil, err
	}
	network := &transport.Network{}
	err = d.start(ctx, server.Config{DataDir: p.dir, Database: p.url(), Roles: []server.Role{server.Orchestrator, server.Fleet},
		Runtime: "simulated", Network: network})
	if err != nil {
		return nil, err
	}
	for i := range hosts {
		dir := filepath.Join(p.dir, fmt.Sprint("host-", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		err := d.start(ctx, server.Config{DataDir: dir, Roles: []server.Role{server.Host}, Runtime: "simulated", Network: network,
			ClusterKeyFile: key, AdvertiseURL: fmt.Sprintf("http://host-%d.internal", i),
			OrchestratorURL: "http://orchestrator.internal", FleetURL: "http://fleet.internal", Capacity: endless()})
		if err != nil {
			return nil, err
		}
	}
	if err := d.awaitHosts(ctx, hosts); err != nil {
		return nil, err
	}
	return d, d.makeProjects(ctx, projects)
}

func (d *deployment) start(ctx context.Context, c server.Config) error {
	c.Listen, c.Logger = "127.0.0.1:0", silent()
	s, err := server.Start(ctx, c)
	if err == nil {
		d.servers = append(d.servers, s)
	}
	return err
}

func (d *deployment) services() rpc.Services { return d.servers[0].Services() }

func (d *deployment) awaitHosts(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		hosts, err := d.services().Fleet.ListHosts(ctx)
		if err != nil {
			return err
		}
		if len(hosts) == want {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d hosts: %w", len(hosts), want, err)
		}
	}
}

func (d *deployment) makeProjects(ctx context.Context, n int) error {
	for i := range n {
		p, err := d.services().Projects.CreateProject(ctx, admin(), holdfast.CreateProject{Name: fmt.Sprint("bench-", i)})
		if err != nil {
			return err
		}
		k, err := d.services().Keys.CreateKey(ctx, admin(), holdfast.CreateKey{Project: p.Name, Name: "bench", Role: holdfast.RoleMember})
		if err != nil {
			return err
		}
		d.callers = append(d.callers, holdfast.Caller{Project: p.ID, Name: "bench", Role: holdfast.RoleMember})
		d.keys = append(d.keys, k.Secret)
	}
	return nil
}

// stop ends the hosts first.
func (d *deployment) stop(ctx context.Context) error {
	var errs []error
	for i := len(d.servers) - 1; i >= 0; i-- {
		errs = append(errs, d.servers[i].Shutdown(ctx))
	}
	d.client.CloseIdleConnections()
	return errors.Join(errs...)
}
