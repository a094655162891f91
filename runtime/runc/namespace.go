package runc

import (
	"errors"
	"fmt"
	"net"
	"os"
	goruntime "runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// newNamespace makes a network namespace that lives as long as the file is open
// or a process is in it: nothing on the host can be left behind.
func newNamespace() (*os.File, error) {
	type made struct {
		file *os.File
		err  error
	}
	answer := make(chan made)
	go func() {
		// The thread is never unlocked, so it ends with this goroutine and takes
		// its way out of the host's namespace with it.
		goruntime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			answer <- made{err: fmt.Errorf("network namespace: %w", err)}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		answer <- made{f, err}
	}()
	m := <-answer
	return m.file, m.err
}

// connect gives the namespace a link to the bridge, an address and a route.
func (n *network) connect(namespace *os.File, index int) error {
	address, name := n.address(index), n.link(index)
	if err := removeLink(name); err != nil { // of a boot that was not cleaned up
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = name, n.index
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: hardware(address), PeerNamespace: netlink.NsFd(namespace.Fd())}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := withoutIPv6(name); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	// Isolated ports of a bridge do not hear each other.
	if err := netlink.LinkSetIsolated(link, true); err != nil {
		return fmt.Errorf("isolating the link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return n.configure(namespace, index)
}

func (n *network) configure(namespace *os.File, index int) (err error) {
	inside, err := netlink.NewHandleAt(netns.NsHandle(namespace.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("the guest's network: %w", err)
	}
	defer inside.Close()
	lo, err := inside.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("the guest's loopback: %w", err)
	}
	eth, err := inside.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("the guest's link: %w", err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: n.address(index).AsSlice(), Mask: net.CIDRMask(subnetBits, 32)}}
	err = errors.Join(inside.LinkSetUp(lo), inside.AddrAdd(eth, address), inside.LinkSetUp(eth))
	if err != nil {
		return fmt.Errorf("the guest's address: %w", err)
	}
	if err := inside.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: n.gateway().AsSlice()}); err != nil {
		return fmt.Errorf("the guest's route: %w", err)
	}
	return nil
}

// disconnect removes link, admissions and reservation.
func (n *network) disconnect(id string, index int) error {
	err := errors.Join(removeLink(n.link(index)), n.dismiss(index))
	if err == nil {
		n.release(id)
	}
	return err
}
