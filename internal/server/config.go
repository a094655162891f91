// Package server puts the parties together in one process: the roles that it
// was started with, their databases, the transport between them, and the port
// that the world reaches. All roles in one process talk over the very same hops
// as three processes do; only the transport is memory instead of a network.
package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/holdfast-dev/holdfast/transport"
)

// Role is one of the parties that a process can be.
type Role string

// The roles.
const (
	Orchestrator Role = "orchestrator"
	Fleet        Role = "fleet"
	Host         Role = "host"
)

// Roles lists every role, which is the default.
func Roles() []Role { return []Role{Orchestrator, Fleet, Host} }

// Config says what a process serves.
type Config struct {
	Roles           []Role
	Listen          string // host:port; default 127.0.0.1:7420
	DataDir         string
	Database        string // postgres://…, shared by replicas; "": SQLite in DataDir, for this process alone
	AdvertiseURL    string // where the other parties reach this process; default http://Listen
	OrchestratorURL string // for fleet and host, where that role is elsewhere; several replicas with commas
	FleetURL        string // for orchestrator and host, where that role is elsewhere; several replicas with commas
	ClusterKeyFile  string // default DataDir/cluster.key, made where every role is here
	Runtime         string // runc or simulated
	RuntimeBinary   string // of the runtime "runc"; default runc
	Blobs           string // where checkpoints are: a directory, or s3://BUCKET; the same for all hosts and orchestrators; default DataDir/blobs
	LocalImages     string // directory that images tar:PATH and dir:PATH are below; "": there are none
	GuestBinary     string // default: holdfast-guest beside this program
	InsecureNoAuth  bool   // calls without a key are the project default's; loopback only
	// AllowPrivateWebhooks lets webhooks reach addresses that are not public.
	AllowPrivateWebhooks bool
	Capacity             holdfast.Capacity
	ClaimTTL             time.Duration // default and most: 2 min
	MaxTTL               time.Duration // of a sandbox's lifetime; default 24 h
	Retention            time.Duration // of a suspended sandbox; default 7 days
	SweepEvery           time.Duration // zero: each sweep's own period
	// A host's silence: until it is suspected, until it is lost, until its instances
	// are given up. Defaults: 15 s, 5 min, 30 min.
	HostSuspectAfter, HostLostAfter, HostLossAfter time.Duration
	DrainFor                                       time.Duration // how long a stop waits for running attempts; default 30 s
	Logger                                         *slog.Logger
	// Faults decorates every hop between the parties, for tests and demos.
	Faults transport.Plan
	// What audit --inject needs of its throwaway system. Each may be nil: Hops and
	// Driver decorate every hop between the parties and the runtime, Clock is the
	// time that parties and databases judge by. BootWithin is how long a boot may
	// take until the guest is heard; zero: 2 min.
	Hops       func(http.RoundTripper) http.RoundTripper
	Driver     func(runtime.Driver) runtime.Driver
	Clock      func() time.Time
	BootWithin time.Duration
	// Network is where servers of one process find each other in memory, for tests
	// and measurements: a host among them is named by its AdvertiseURL, such as
	// http://host-7.internal, the other parties as in a server of all roles. nil: a
	// network of this server's own.
	Network *transport.Network
}

func (c Config) has(r Role) bool { return slices.Contains(c.Roles, r) }

// withDefaults fills in and checks. Every refusal says what to do.
func (c Config) withDefaults() (Config, error) {
	if len(c.Roles) == 0 {
		c.Roles = Roles()
	}
	for _, r := range c.Roles {
		if !slices.Contains(Roles(), r) {
			return c, fmt.Errorf("there is no role %q: use orchestrator, fleet, host, or several with commas", r)
		}
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:7420"
	}
	if c.DataDir == "" {
		return c, errors.New("no data directory: use --data-dir")
	}
	var err error
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return c, fmt.Errorf("data directory: %w", err)
	}
	if c.Runtime == "" {
		c.Runtime = "runc"
	}
	if c.Blobs == "" {
		c.Blobs = filepath.Join(c.DataDir, "blobs")
	}
	if c.DrainFor == 0 {
		c.DrainFor = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, c.check()
}

func (c Config) check() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("--listen %q is not host:port: %w", c.Listen, err)
	}
	if c.InsecureNoAuth && !loopback(host) {
		return fmt.Errorf("--insecure-no-auth lets anyone in, so it needs a loopback address, not --listen %s", c.Listen)
	}
	if scheme, _, _ := strings.Cut(c.Database, "://"); c.Database != "" && scheme != "postgres" && scheme != "postgresql" {
		return errors.New("--database is postgres://user:password@host:5432/name; leave it out for SQLite in the data directory")
	}
	if c.MaxTTL < 0 || c.MaxTTL > holdfast.LongestTTL {
		return fmt.Errorf("--max-ttl is %s; it must be at most %s", c.MaxTTL, holdfast.LongestTTL)
	}
	if err := c.checkSilence(); err != nil {
		return err
	}
	if !c.has(Fleet) && (c.has(Orchestrator) || c.has(Host)) && c.FleetURL == "" {
		return errors.New("the fleet is not one of this process's roles: say where it is with --fleet-url")
	}
	if !c.has(Orchestrator) && c.OrchestratorURL == "" {
		return errors.New("the orchestrator is not one of this process's roles: say where it is with --orchestrator-url")
	}
	for flag, text := range map[string]string{"--fleet-url": c.FleetURL, "--orchestrator-url": c.OrchestratorURL} {
		if err := checkURLs(flag, text); err != nil {
			return err
		}
	}
	return checkURL("--advertise-url", c.AdvertiseURL)
}

// checkSilence holds the three times of a host's silence in their order.
func (c Config) checkSilence() error {
	suspect, lost, loss := cmp.Or(c.HostSuspectAfter, holdfast.HostSuspectAfter), cmp.Or(c.HostLostAfter, holdfast.HostLostAfter),
		cmp.Or(c.HostLossAfter, holdfast.HostLossAfter)
	if suspect <= 0 || lost <= suspect || loss <= lost {
		return fmt.Errorf("a silent host is suspected, then lost, then given up: --host-suspect-after %s, --host-lost-after %s and --host-loss-after %s must rise in that order",
			suspect, lost, loss)
	}
	return nil
}

func checkURL(flag, text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%s %q is not a URL such as http://10.0.0.5:7420", flag, text)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (c Config) clusterKeyFile() string {
	if c.ClusterKeyFile != "" {
		return c.ClusterKeyFile
	}
	return filepath.Join(c.DataDir, "cluster.key")
}

// guestBinary finds the guest agent's program.
func (c Config) guestBinary() (string, error) {
	path := c.GuestBinary
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find holdfast-guest: %w", err)
		}
		path = filepath.Join(filepath.Dir(self), "holdfast-guest")
	}
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("the guest agent is not at %s: make build puts it beside holdfast, or say where it is with --guest-binary", path)
	}
	return path, nil
}

// trimURL takes the trailing slash off, which paths bring themselves.
func trimURL(u string) string { return strings.TrimRight(u, "/") }
