// Package cluster runs a whole deployment on one machine: two orchestrators, two
// fleet services and three host agents as processes of their own, on one
// throwaway PostgreSQL server. make cluster shows it to a person, and tests kill
// and restart its parts.
package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// Config is what a cluster is made of. Zero numbers are the usual two, two and three.
type Config struct {
	Binaries      string // directory of holdfast and holdfast-guest
	Directory     string // of all data directories and logs; not there yet, or empty
	Runtime       string // runc or simulated; "": runc
	Orchestrators int
	Fleets        int
	Hosts         int
	Flags         []string // for every process
	FirstPort     int      // of consecutive ports on loopback; 0: free ones
}

func (c Config) withDefaults() Config {
	if c.Runtime == "" {
		c.Runtime = "runc"
	}
	for _, n := range []struct {
		set *int
		to  int
	}{{&c.Orchestrators, 2}, {&c.Fleets, 2}, {&c.Hosts, 3}} {
		if *n.set == 0 {
			*n.set = n.to
		}
	}
	return c
}

// databaseVariable is --database.
const databaseVariable = "HOLDFAST_DATABASE"

// Cluster is a running deployment.
type Cluster struct {
	Postgres      *testenv.Postgres
	Database      string // its URL
	Orchestrators []*Process
	Fleets        []*Process
	Hosts         []*Process
	Key           string // the admin's API key, at every orchestrator
	config        Config
}

// Start starts a cluster and returns when every process takes calls. What a
// failed start had begun is ended again.
func Start(ctx context.Context, config Config) (_ *Cluster, err error) {
	c := &Cluster{config: config.withDefaults(), Key: "hf_" + strings.ToLower(rand.Text()+rand.Text()[:6])}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if c.Postgres, err = testenv.NewPostgres(); err != nil {
		return nil, err
	}
	if err := c.Postgres.Exec(ctx, "postgres", "CREATE DATABASE holdfast"); err != nil {
		return nil, err
	}
	c.Database = c.Postgres.URL("holdfast")
	if err := c.layOut(); err != nil {
		return nil, err
	}
	// Orchestrators and fleets need each other's addresses and not each other's answers.
	return c, startAll(c.All())
}

// layOut gives every process its directory, its address and its command line.
func (c *Cluster) layOut() error {
	addresses, err := c.addresses(c.config.Orchestrators + c.config.Fleets + c.config.Hosts)
	if err != nil {
		return err
	}
	key := filepath.Join(c.config.Directory, "cluster.key")
	if err := writeSecret(key, rand.Text()+rand.Text()); err != nil {
		return err
	}
	o, f := c.config.Orchestrators, c.config.Fleets
	orchestrators, fleets := urls(addresses[:o]), urls(addresses[o:o+f])
	for i, address := range addresses {
		p := &Process{Program: filepath.Join(c.config.Binaries, "holdfast"), Listen: address}
		args := []string{"--cluster-key-file", key, "--blobs", filepath.Join(c.config.Directory, "blobs")}
		switch {
		case i < o:
			p.Name = fmt.Sprint("orchestrator", i+1)
			args = append(args, "--roles", "orchestrator", "--fleet-url", fleets)
			c.Orchestrators = append(c.Orchestrators, p)
		case i < o+f:
			p.Name = fmt.Sprint("fleet", i-o+1)
			args = append(args, "--roles", "fleet", "--orchestrator-url", orchestrators)
			c.Fleets = append(c.Fleets, p)
		default:
			p.Name = fmt.Sprint("host", i-o-f+1)
			args = append(args, "--roles", "host", "--runtime", c.config.Runtime, "--orchestrator-url", orchestrators, "--fleet-url", fleets)
			c.Hosts = append(c.Hosts, p)
		}
		if i < o+f {
			p.Env = []string{databaseVariable + "=" + c.Database} // not on the command line, which everyone on the machine can read
		}
		p.DataDir = filepath.Join(c.config.Directory, p.Name)
		p.Args = slices.Concat(args, c.config.Flags)
		if err := os.MkdirAll(p.DataDir, 0o700); err != nil {
			return err
		}
		if i < o {
			if err := writeSecret(filepath.Join(p.DataDir, "admin.key"), c.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeSecret(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text+"\n"), 0o600)
}

func urls(addresses []string) string {
	out := make([]string, len(addresses))
	for i, a := range addresses {
		out[i] = "http://" + a
	}
	return strings.Join(out, ",")
}

// addresses are consecutive ports, or free ones, all held until each is known.
func (c *Cluster) addresses(n int) (out []string, err error) {
	for i := range n {
		if c.config.FirstPort > 0 {
			out = append(out, fmt.Sprintf("127.0.0.1:%d", c.config.FirstPort+i))
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		out = append(out, l.Addr().String())
	}
	return out, nil
}

// All lists every process, the orchestrators first.
func (c *Cluster) All() []*Process { return slices.Concat(c.Orchestrators, c.Fleets, c.Hosts) }

// DataDirs lists every process's data directory.
func (c *Cluster) DataDirs() []string {
	var out []string
	for _, p := range c.All() {
		out = append(out, p.DataDir)
	}
	return out
}

func startAll(all []*Process) error {
	var starts sync.WaitGroup
	errs := make([]error, len(all))
	for i, p := range all {
		starts.Go(func() { errs[i] = p.Start() })
	}
	starts.Wait()
	return errors.Join(errs...)
}

// Stop ends every process in order, those that depend on others first, and the
// database with its files. The data directories stay. It can be called again.
func (c *Cluster) Stop() error {
	var errs []error
	for _, group := range [][]*Process{c.Orchestrators, c.Fleets, c.Hosts} {
		var stops sync.WaitGroup
		results := make([]error, len(group))
		for i, p := range group {
			stops.Go(func() { results[i] = p.Stop() })
		}
		stops.Wait()
		errs = append(errs, results...)
	}
	if c.Postgres != nil {
		errs = append(errs, c.Postgres.Remove())
	}
	return errors.Join(errs...)
}

// Logs are the ends of all processes' logs, for messages.
func (c *Cluster) Logs() string {
	var out strings.Builder
	for _, p := range c.All() {
		fmt.Fprintf(&out, "== %s\n%s\n", p.Name, p.Log())
	}
	return out.String()
}

// Use gives orchestrators and fleets another database, from their next start on.
func (c *Cluster) Use(database string) {
	for _, p := range slices.Concat(c.Orchestrators, c.Fleets) {
		p.Env = []string{databaseVariable + "=" + database}
	}
}
