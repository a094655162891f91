package runc

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast"
)

// adoptNetwork puts bridge, addresses and rules as the boots in our directory
// need them, whatever an earlier process or a reboot left.
func (d *Driver) adoptNetwork() error {
	if err := d.network.load(); err != nil {
		return err
	}
	boots, err := os.ReadDir(d.instancesDirectory())
	if err != nil {
		return err
	}
	var guests []guest
	forwarding := false
	for _, b := range boots {
		s, there, err := files(filepath.Join(d.instancesDirectory(), b.Name())).readSettings()
		if err != nil {
			return err
		}
		if there {
			d.network.adopt(b.Name(), s.Index)
			guests = append(guests, guest{index: s.Index, egress: s.Egress})
			forwarding = forwarding || s.Egress != holdfast.EgressNone
		}
	}
	if err := d.network.readyBridge(); err != nil {
		return err
	}
	nameservers, err := d.nameservers()
	if err != nil {
		return err
	}
	if err := d.network.readyTables(guests, nameservers); err != nil {
		return err
	}
	if forwarding {
		if err := forwardPackets(); err != nil {
			return err
		}
	}
	return d.network.removeStrayLinks()
}

// forwardPackets lets the host route, which it does only from the first instance
// on that may reach the internet.
func forwardPackets() error {
	const path = "/proc/sys/net/ipv4/ip_forward"
	now, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(now)) == "1" {
		return nil
	}
	return os.WriteFile(path, []byte("1"), 0)
}

// nameservers are what guests ask: as configured, else the host's, else (where
// the host's listen on its loopback, which no guest reaches) those its resolver
// asks in turn, else a public one.
func (d *Driver) nameservers() ([]netip.Addr, error) {
	if len(d.config.Nameservers) > 0 {
		return parseNameservers("nameserver " + strings.Join(d.config.Nameservers, "\nnameserver ")), nil
	}
	for _, path := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		text, err := os.ReadFile(path)
		if err != nil {
			if os.IsNotExist(err) {
				continue
			}
			return nil, err
		}
		if found := parseNameservers(string(text)); len(found) > 0 {
			return found, nil
		}
	}
	return []netip.Addr{netip.AddrFrom4([4]byte{8, 8, 8, 8})}, nil
}

// parseNameservers keeps the IPv4 ones that a guest can reach.
func parseNameservers(text string) []netip.Addr {
	var found []netip.Addr
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil && a.Is4() && !a.IsLoopback() {
			found = append(found, a)
		}
	}
	return found
}
