package runc

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/holdfast-dev/holdfast"
	"golang.org/x/sys/unix"
)

// The rules, in two tables of this host agent's own:
//
//	bridge: from a guest's port only its own hardware and IPv4 address come in
//	        (set guests); no IPv6, no foreign ARP. All that follows may thus
//	        trust a source address.
//	ip:     input    guests reach the gateway's port and nothing else of the host;
//	                 nobody but guests reaches the gateway
//	        forward  guests in the set internet reach public addresses and the
//	                 nameservers; nothing is let in that a guest did not ask for
//	        nat      what leaves wears the host's address
const (
	setGuests   = "guests"
	setInternet = "internet"
	setNames    = "nameservers"
	setPrivate  = "private"
	setPorts    = "gateway"
)

// Registers of a key made of a link's name, a hardware and an IPv4 address.
const (
	registerLink     = unix.NFT_REG_1
	registerHardware = unix.NFT_REG32_00 + 4
	registerAddress  = unix.NFT_REG32_00 + 6
)

// privateRanges are the destinations that no guest reaches through its host.
func privateRanges() []netip.Prefix {
	var ranges []netip.Prefix
	for _, s := range []string{"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"} {
		ranges = append(ranges, netip.MustParsePrefix(s))
	}
	return ranges
}

// guest is one instance as the rules know it.
type guest struct {
	index  int
	egress holdfast.Egress
}

func (n *network) bridgeTable() *nftables.Table {
	return &nftables.Table{Name: n.table, Family: nftables.TableFamilyBridge}
}

func (n *network) ipTable() *nftables.Table {
	return &nftables.Table{Name: n.table, Family: nftables.TableFamilyIPv4}
}

func (n *network) guestSet() *nftables.Set {
	return &nftables.Set{Table: n.bridgeTable(), Name: setGuests, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, nftables.TypeIPAddr)}
}

func (n *network) addressSet(name string) *nftables.Set {
	return &nftables.Set{Table: n.ipTable(), Name: name, KeyType: nftables.TypeIPAddr}
}

func (n *network) portSet() *nftables.Set {
	return &nftables.Set{Table: n.ipTable(), Name: setPorts, KeyType: nftables.TypeInetService}
}

func (n *network) guestElement(index int) []nftables.SetElement {
	key := make([]byte, 28)
	copy(key, n.link(index))
	copy(key[16:], hardware(n.address(index)))
	copy(key[24:], n.address(index).AsSlice())
	return []nftables.SetElement{{Key: key}}
}

func (n *network) addressElement(index int) []nftables.SetElement {
	return []nftables.SetElement{{Key: n.address(index).AsSlice()}}
}

// readyTables replaces both tables in one transaction of the kernel's: there is
// no moment in which a running guest has more or less than its due.
func (n *network) readyTables(guests []guest, nameservers []netip.Addr) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	for _, t := range []*nftables.Table{n.bridgeTable(), n.ipTable()} {
		c.AddTable(t) // deleting what is not there would fail
		c.DelTable(t)
		c.AddTable(t)
	}
	var known, internet, names, private, ports []nftables.SetElement
	for _, g := range guests {
		known = append(known, n.guestElement(g.index)...)
		if g.egress != holdfast.EgressNone {
			internet = append(internet, n.addressElement(g.index)...)
		}
	}
	for _, a := range nameservers {
		names = append(names, nftables.SetElement{Key: a.AsSlice()})
	}
	for _, r := range privateRanges() {
		private = append(private, nftables.SetElement{Key: r.Addr().AsSlice()}, nftables.SetElement{Key: after(r), IntervalEnd: true})
	}
	if n.plan.Port != 0 {
		ports = append(ports, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(n.plan.Port)})
	}
	ranges := n.addressSet(setPrivate)
	ranges.Interval = true
	err = errors.Join(c.AddSet(n.guestSet(), known), c.AddSet(n.addressSet(setInternet), internet),
		c.AddSet(n.addressSet(setNames), names), c.AddSet(ranges, private), c.AddSet(n.portSet(), ports))
	if err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	n.addBridgeRules(c)
	n.addInputRules(c)
	n.addForwardRules(c)
	n.addNATRules(c)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("firewall (the kernel needs nf_tables for the families bridge and ip): %w", err)
	}
	return nil
}

// after is the first address beyond p; 0.0.0.0 beyond the last.
func after(p netip.Prefix) []byte {
	a := p.Addr().As4()
	value := binaryutil.BigEndian.Uint32(a[:]) + uint32(1)<<(32-p.Bits())
	return binaryutil.BigEndian.PutUint32(value)
}

// change applies one change of sets.
func (n *network) change(apply func(*nftables.Conn) error) error {
	c, err := nftables.New()
	if err == nil {
		err = apply(c)
	}
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	return nil
}

// openGateway lets guests reach the port that the gateway got.
func (n *network) openGateway() error {
	return n.change(func(c *nftables.Conn) error {
		c.FlushSet(n.portSet())
		return c.SetAddElements(n.portSet(), []nftables.SetElement{{Key: binaryutil.BigEndian.PutUint16(n.plan.Port)}})
	})
}

// admit lets a guest in, as its egress says. Admitted already: nothing changes.
func (n *network) admit(g guest, nameservers []netip.Addr) error {
	return n.change(func(c *nftables.Conn) error {
		if err := c.SetAddElements(n.guestSet(), n.guestElement(g.index)); err != nil {
			return err
		}
		if g.egress == holdfast.EgressNone {
			return nil
		}
		for _, a := range nameservers {
			if err := c.SetAddElements(n.addressSet(setNames), []nftables.SetElement{{Key: a.AsSlice()}}); err != nil {
				return err
			}
		}
		return c.SetAddElements(n.addressSet(setInternet), n.addressElement(g.index))
	})
}

// dismiss takes a guest out. Deleting what a set does not hold fails the whole
// change, so it is added first.
func (n *network) dismiss(index int) error {
	return n.change(func(c *nftables.Conn) error {
		guests, internet := n.guestSet(), n.addressSet(setInternet)
		return errors.Join(
			c.SetAddElements(guests, n.guestElement(index)), c.SetDeleteElements(guests, n.guestElement(index)),
			c.SetAddElements(internet, n.addressElement(index)), c.SetDeleteElements(internet, n.addressElement(index)))
	})
}

func (n *network) removeTables() error {
	return n.change(func(c *nftables.Conn) error {
		for _, t := range []*nftables.Table{n.bridgeTable(), n.ipTable()} {
			c.AddTable(t)
			c.DelTable(t)
		}
		return nil
	})
}

// accept, drop and reset are the ends of rules.
func accept() expr.Any { return &expr.Verdict{Kind: expr.VerdictAccept} }
func drop() expr.Any   { return &expr.Verdict{Kind: expr.VerdictDrop} }
