package runc

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// network is one bridge of one host agent, the addresses on it and the rules
// around it.
type network struct {
	bridge string
	prefix string // of the host's ends of the guests' links
	table  string
	file   string // remembers plan

	mu    sync.Mutex
	plan  plan
	used  map[int]string // index → container id
	next  int            // where the search for a free index begins: a fresh address is one long unused
	index int            // of the bridge, as the kernel numbers links
}

// plan is what stays the same over restarts.
type plan struct {
	Subnet netip.Prefix `json:"subnet"`
	Port   uint16       `json:"port"` // of the gateway; 0 until it first listened
}

const (
	subnetBits  = 20
	firstIndex  = 2 // .0 is the network, .1 the gateway
	lastIndex   = 1<<(32-subnetBits) - 2
	subnetCount = 1 << (subnetBits - 10)
)

func newNetwork(name, directory string) *network {
	return &network{
		bridge: "hf" + name,
		prefix: "hf" + name + "v",
		table:  "holdfast-" + name,
		file:   filepath.Join(directory, "network.json"),
		used:   map[int]string{},
		next:   firstIndex,
	}
}

// subnet is the n-th /20 of 10.64.0.0/10.
func subnet(n int) netip.Prefix {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 10<<24|64<<16|uint32(n)<<(32-subnetBits))
	return netip.PrefixFrom(netip.AddrFrom4(a), subnetBits)
}

// chooseSubnet returns the first that overlaps nothing taken, from a start that
// differs between host agents. The default route takes nothing.
func chooseSubnet(name string, taken []netip.Prefix) (netip.Prefix, error) {
	h := fnv.New32a()
	h.Write([]byte(name)) //nolint:errcheck // a hash never fails
	for i := range subnetCount {
		candidate := subnet((int(h.Sum32()%subnetCount) + i) % subnetCount)
		free := true
		for _, t := range taken {
			if t.Bits() > 0 && t.Overlaps(candidate) {
				free = false
			}
		}
		if free {
			return candidate, nil
		}
	}
	return netip.Prefix{}, errors.New("no subnet of 10.64.0.0/10 is free on this host")
}

func (n *network) gateway() netip.Addr { return n.plan.Subnet.Addr().Next() }

func (n *network) address(index int) netip.Addr {
	base := n.plan.Subnet.Addr().As4()
	binary.BigEndian.PutUint32(base[:], binary.BigEndian.Uint32(base[:])+uint32(index))
	return netip.AddrFrom4(base)
}

// hardware derives a locally administered address, so that the firewall knows
// it before the link exists.
func hardware(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x02, 0x68, b[0], b[1], b[2], b[3]}
}

func (n *network) link(index int) string { return fmt.Sprintf("%s%03x", n.prefix, index) }

// reserve gives the container an address; repeated, the same one.
func (n *network) reserve(id string) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for index, holder := range n.used {
		if holder == id {
			return index, nil
		}
	}
	for range lastIndex {
		index := n.next
		if n.next++; n.next > lastIndex {
			n.next = firstIndex
		}
		if n.used[index] == "" {
			n.used[index] = id
			return index, nil
		}
	}
	return 0, errors.New("every address of the subnet is taken")
}

// adopt notes an address found in a boot's settings.
func (n *network) adopt(id string, index int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.used[index] = id
	if index >= n.next && index < lastIndex {
		n.next = index + 1
	}
}

func (n *network) release(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for index, holder := range n.used {
		if holder == id {
			delete(n.used, index)
		}
	}
}

// load reads the plan, or makes it.
func (n *network) load() error {
	data, err := os.ReadFile(n.file)
	if err == nil {
		if err := json.Unmarshal(data, &n.plan); err != nil || !n.plan.Subnet.IsValid() || n.plan.Subnet.Bits() != subnetBits {
			return errors.Join(fmt.Errorf("%s is damaged", n.file), err)
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	taken, err := routes(n.bridge)
	if err != nil {
		return err
	}
	if n.plan.Subnet, err = chooseSubnet(n.bridge, taken); err != nil {
		return err
	}
	return n.save()
}

func (n *network) save() error {
	data, err := json.Marshal(n.plan)
	if err != nil {
		return err
	}
	return writeDurably(n.file, data)
}

// routes lists what the host's IPv4 routes cover, our bridge's apart.
func routes(bridge string) ([]netip.Prefix, error) {
	found, err := undisturbed(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	own := -1
	if link, err := netlink.LinkByName(bridge); err == nil {
		own = link.Attrs().Index
	}
	var prefixes []netip.Prefix
	for _, r := range found {
		if r.Dst == nil || r.LinkIndex == own {
			continue
		}
		if a, ok := netip.AddrFromSlice(r.Dst.IP.To4()); ok {
			ones, _ := r.Dst.Mask.Size()
			prefixes = append(prefixes, netip.PrefixFrom(a, ones))
		}
	}
	return prefixes, nil
}

// readyBridge makes the bridge, or corrects the one that is there.
func (n *network) readyBridge() error {
	link, err := netlink.LinkByName(n.bridge)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = n.bridge, hardware(n.gateway())
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("making the bridge %s: %w", n.bridge, err)
		}
		link, err = netlink.LinkByName(n.bridge)
	}
	if err != nil {
		return fmt.Errorf("bridge %s: %w", n.bridge, err)
	}
	n.index = link.Attrs().Index
	if err := withoutIPv6(n.bridge); err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: n.gateway().AsSlice(), Mask: net.CIDRMask(subnetBits, 32)}}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("address of the bridge %s: %w", n.bridge, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bridge %s: %w", n.bridge, err)
	}
	return nil
}

// listen opens the gateway, at the port it had before.
func (n *network) listen() (net.Listener, error) {
	listener, err := net.Listen("tcp4", netip.AddrPortFrom(n.gateway(), n.plan.Port).String())
	if err != nil {
		return nil, err
	}
	port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
	if port == n.plan.Port {
		return listener, nil
	}
	n.plan.Port = port
	if err := n.save(); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	// Only now the rules can name the port.
	if err := n.openGateway(); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// remove takes bridge and rules off the host.
func (n *network) remove() error {
	err := n.removeTables()
	link, linkErr := netlink.LinkByName(n.bridge)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(linkErr, &missing):
		return err
	case linkErr != nil:
		return errors.Join(err, linkErr)
	}
	return errors.Join(err, netlink.LinkDel(link))
}

// removeStrayLinks removes the host's ends of links whose boot is gone.
func (n *network) removeStrayLinks() error {
	links, err := undisturbed(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("links: %w", err)
	}
	wanted := map[string]bool{}
	for index := range n.used {
		wanted[n.link(index)] = true
	}
	for _, l := range links {
		if name := l.Attrs().Name; strings.HasPrefix(name, n.prefix) && !wanted[name] {
			if err := removeLink(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	// It goes by itself, too, when the guest's namespace does.
	if err != nil && !errors.Is(err, unix.ENODEV) && !errors.As(err, &missing) {
		return fmt.Errorf("removing the link %s: %w", name, err)
	}
	return nil
}

func withoutIPv6(link string) error {
	return writeIfThere(filepath.Join("/proc/sys/net/ipv6/conf", link, "disable_ipv6"), "1")
}

// writeDurably replaces path, or leaves it as it was.
func writeDurably(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
