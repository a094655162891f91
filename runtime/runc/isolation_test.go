package runc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/runtime"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// opened opens d with a gateway that accepts and hangs up, until the end of the
// test or shut.
func opened(t *testing.T, d *Driver) (url string, shut func()) {
	t.Helper()
	gateway, url, err := d.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	acceptAll(t, gateway)
	shut = sync.OnceFunc(func() {
		if err := errors.Join(gateway.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(shut)
	return url, shut
}

// acceptAll accepts and hangs up until the test ends.
func acceptAll(t *testing.T, l net.Listener) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close() //nolint:errcheck // the test's own
		}
	}()
	t.Cleanup(func() {
		l.Close() //nolint:errcheck // it may be closed already
		<-done
	})
}

func started(t *testing.T, d *Driver, b runtime.Bundle) runtime.Bundle {
	t.Helper()
	if err := errors.Join(d.Prepare(t.Context(), b), d.Start(t.Context(), b.Ref)); err != nil {
		t.Fatal(err)
	}
	ask(t, d, b, "nonce")
	return b
}

func addressOf(t *testing.T, d *Driver, b runtime.Bundle) string {
	t.Helper()
	s, err := d.Inspect(t.Context(), b.Ref)
	if err != nil || s.Address == "" {
		t.Fatal(s, err)
	}
	return s.Address
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	acceptAll(t, l)
	return l
}

// inNamespace runs f on a thread in the network namespace of the file.
func inNamespace(t *testing.T, path string, f func() error) error {
	t.Helper()
	answer := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ns, err := netns.GetFromPath(path)
		if err == nil {
			err = errors.Join(netns.Set(ns), ns.Close())
		}
		if err == nil {
			err = f()
		}
		answer <- err
	}()
	return <-answer
}

// reach dials from a source address; it says what came of it.
func reach(from, to string) error {
	dialer := net.Dialer{Timeout: 500 * time.Millisecond}
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := dialer.Dial("tcp4", to)
	if err != nil {
		return err
	}
	return c.Close()
}

func TestNeighboursReachNeitherEachOtherNorTheHost(t *testing.T) {
	d := newTestDriver(t)
	url, _ := opened(t, d)
	root := testRoot(t)
	a := started(t, d, testBundle(t, root, holdfast.EgressInternet))
	b := started(t, d, testBundle(t, root, holdfast.EgressInternet))
	gateway := strings.TrimPrefix(url, "http://")
	bridge, _, _ := net.SplitHostPort(gateway)

	if got := ask(t, d, b, "sh (while nc -l -p 7000 -e cat; do :; done >/dev/null 2>&1 &)"); got != "ok" {
		t.Fatal(got)
	}
	server := addressOf(t, d, b) + ":7000"
	until(t, func() bool { return reach("", server) == nil })
	for index := range d.network.used {
		link, err := netlink.LinkByName(d.network.link(index))
		if err != nil {
			t.Fatal(err)
		}
		if port, err := netlink.LinkGetProtinfo(link); err != nil || !port.Isolated {
			t.Errorf("the port of a guest is not isolated, the firewall alone keeps neighbours apart: %v", err)
		}
	}

	for what, address := range map[string]string{
		"a neighbour":                       server,
		"a port beside the gateway":         listen(t, bridge+":0").Addr().String(),
		"the host's other addresses":        hostAddress(t) + portOf(listen(t, "0.0.0.0:0")),
		"a nonexistent neighbour":           d.network.address(4000).String() + ":80",
		"link-local services (cloud keys)":  "169.254.169.254:80",
		"the host's loopback by its bridge": "127.0.0.1" + portOf(listen(t, "127.0.0.1:0")),
	} {
		if got := ask(t, d, a, "dial "+address); !strings.HasPrefix(got, "error") {
			t.Errorf("a guest reaches %s at %s: %s", what, address, got)
		}
	}
	if got := ask(t, d, a, "dial "+gateway); got != "open" {
		t.Errorf("a guest does not reach the gateway: %s", got)
	}
	if err := reach("", gateway); err == nil {
		t.Error("the host itself, which is no guest, reaches the gateway")
	}
}

func portOf(l net.Listener) string {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return ":" + port
}

// hostAddress is one of the host's that is not the bridge's.
func hostAddress(t *testing.T) string {
	t.Helper()
	all, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if !a.IP.IsLoopback() && a.IP.To4()[0] != 10 {
			return a.IP.String()
		}
	}
	return "127.0.0.1"
}

// until polls: what it waits for has no signal.
func until(t *testing.T, true func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !true(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not come about in 5 s")
		}
		if err := pause(t.Context(), 5*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAGuestCannotWearAnothersAddress(t *testing.T) {
	d := newTestDriver(t)
	url, _ := opened(t, d)
	gateway := strings.TrimPrefix(url, "http://")
	a := started(t, d, testBundle(t, testRoot(t), holdfast.EgressNone))
	seen, err := d.look(t.Context(), a.Ref)
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/%d/ns/net", seen.pid)
	other := d.network.address(3000)
	err = inNamespace(t, path, func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(eth, &netlink.Addr{IPNet: &net.IPNet{IP: other.AsSlice(), Mask: net.CIDRMask(32, 32)}})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := inNamespace(t, path, func() error { return reach(addressOf(t, d, a), gateway) }); err != nil {
		t.Errorf("with its own address the guest does not reach the gateway: %v", err)
	}
	if err := inNamespace(t, path, func() error { return reach(other.String(), gateway) }); err == nil {
		t.Error("with an address that is not its own the guest reaches the gateway")
	}
	err = inNamespace(t, path, func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(eth, hardware(other))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := inNamespace(t, path, func() error { return reach(addressOf(t, d, a), gateway) }); err == nil {
		t.Error("with hardware that is not its own the guest reaches the gateway")
	}
}

// internet makes a namespace that is to the host what the internet is: public
// and private addresses behind a link, with a listener. It returns its path.
func internet(t *testing.T) (path, public, private string) {
	t.Helper()
	ns, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("hft%x", os.Getpid()&0xffffff)
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "up0", PeerNamespace: netlink.NsFd(ns.Fd())}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(removeLink(attrs.Name), ns.Close()); err != nil {
			t.Error(err)
		}
	})
	parse := func(s string) *netlink.Addr {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	near := []error{netlink.AddrAdd(link, parse("11.99.0.1/24")), netlink.AddrAdd(link, parse("172.31.99.1/24")), netlink.LinkSetUp(link)}
	if err := errors.Join(near...); err != nil {
		t.Fatal(err)
	}
	path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())
	var listener net.Listener
	err = inNamespace(t, path, func() error {
		up, err := netlink.LinkByName("up0")
		if err != nil {
			return err
		}
		err = errors.Join(netlink.AddrAdd(up, parse("11.99.0.2/24")), netlink.AddrAdd(up, parse("172.31.99.2/24")), netlink.LinkSetUp(up),
			netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: net.IPv4(11, 99, 0, 1)}))
		if err != nil {
			return err
		}
		listener, err = net.Listen("tcp4", "0.0.0.0:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	acceptAll(t, listener)
	return path, "11.99.0.2" + portOf(listener), "172.31.99.2" + portOf(listener)
}

func TestEgressIsWhatWasAskedFor(t *testing.T) {
	d := newTestDriver(t)
	url, _ := opened(t, d)
	gateway := strings.TrimPrefix(url, "http://")
	root := testRoot(t)
	path, public, private := internet(t)
	open := started(t, d, testBundle(t, root, holdfast.EgressInternet))
	closed := started(t, d, testBundle(t, root, holdfast.EgressNone))

	if err := reach("", public); err != nil {
		t.Fatalf("the test's own internet is not there: %v", err)
	}
	if got := ask(t, d, open, "dial "+public); got != "open" {
		t.Errorf("INTERNET does not reach a public address: %s", got)
	}
	if got := ask(t, d, open, "dial "+private); !strings.HasPrefix(got, "error") {
		t.Errorf("INTERNET reaches a private address: %s", got)
	}
	for _, address := range []string{public, private} {
		if got := ask(t, d, closed, "dial "+address); !strings.HasPrefix(got, "error") {
			t.Errorf("NONE reaches %s: %s", address, got)
		}
	}
	if got := ask(t, d, closed, "dial "+gateway); got != "open" {
		t.Errorf("NONE does not reach the gateway: %s", got)
	}
	// And from out there nobody comes in.
	if got := ask(t, d, open, "sh (while nc -l -p 7000 -e cat; do :; done >/dev/null 2>&1 &)"); got != "ok" {
		t.Fatal(got)
	}
	server := addressOf(t, d, open) + ":7000"
	until(t, func() bool { return reach("", server) == nil })
	for what, address := range map[string]string{"a guest": server, "the gateway": gateway} {
		if err := inNamespace(t, path, func() error { return reach("", address) }); err == nil {
			t.Errorf("the world reaches %s", what)
		}
	}
}

func TestHostileGuestsAreRefused(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	b := started(t, d, testBundle(t, testRoot(t), holdfast.EgressNone))
	for _, request := range []string{"mount", "unshare", "clone", "mknod", "packet", "replace-console", "write-console", "write-guest",
		"sh echo x > /proc/sys/kernel/panic", "sh echo c > /proc/sysrq-trigger", "sh cat /sys/firmware/* | grep .", "sh rm /run/holdfast/spool/console",
		"sh mv /run/holdfast/spool /run/holdfast/other"} {
		if got := ask(t, d, b, request); !strings.HasPrefix(got, "error") {
			t.Errorf("%s: %s", request, got)
		}
	}
	status := ask(t, d, b, "sh cat /proc/self/status")
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t00000000a00005fb", "CapBnd:\t00000000a00005fb", "CapAmb:\t0000000000000000"} {
		if !strings.Contains(status, want) {
			t.Errorf("a guest's process has no %q: %s", want, status)
		}
	}
	info, err := os.Stat(string(d.files(b.Ref)))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the writable layer, where set-uid files may be, is open to the host's users: %v, %v", info, err)
	}
	if got := ask(t, d, b, "sh ls /run/holdfast"); got != "ok spool" {
		t.Errorf("the guest's secret is still there: %s", got)
	}
	for path, want := range map[string]string{"/etc/hostname": string(b.Ref.Instance), "/etc/resolv.conf": "nameserver"} {
		if got := ask(t, d, b, "sh cat "+path+" && echo more >> "+path); !strings.Contains(got, want) || !strings.HasPrefix(got, "ok") {
			t.Errorf("%s: %s", path, got)
		}
	}
}

func TestLimitsAreTheKernels(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	b := testBundle(t, testRoot(t), holdfast.EgressNone)
	b.Spec.Resources = holdfast.Resources{CPUMillis: 250, MemoryBytes: 64 << 20, PIDs: 32}
	started(t, d, b)
	dirs, err := d.cgroups.directories(containerID(b.Ref))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, dir := range dirs {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes", "pids.max", "cpu.max", "cpu.cfs_quota_us"} {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				seen[strings.SplitN(name, ".", 2)[0]] = strings.TrimSpace(string(data))
			}
		}
	}
	if seen["memory"] != "67108864" || seen["pids"] != "32" || !strings.HasPrefix(seen["cpu"], "25000") {
		t.Errorf("the limits are %v", seen)
	}
}

func TestAHostileSpoolIsNotFollowed(t *testing.T) {
	d := newTestDriver(t)
	opened(t, d)
	b := testBundle(t, testRoot(t), holdfast.EgressNone)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(b.Spool, consoleName)); err != nil {
		t.Fatal(err)
	}
	started(t, d, b)
	if data, err := os.ReadFile(victim); err != nil || string(data) != "untouched" {
		t.Errorf("a link in the spool was followed: %q, %v", data, err)
	}
	console, err := os.ReadFile(filepath.Join(b.Spool, consoleName))
	if err != nil || !strings.Contains(string(console), "guest: up") {
		t.Errorf("the console says %q, %v", console, err)
	}
}
