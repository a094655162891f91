package runc

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// rule collects the parts of one rule.
type rule []expr.Any

func when(parts ...rule) rule {
	var all rule
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func (r rule) then(end ...expr.Any) []expr.Any { return append(r, end...) }

// from and to compare the link a packet comes in or goes out by; a name's
// padding makes the comparison exact.
func from(link string) rule { return onLink(expr.MetaKeyIIFNAME, expr.CmpOpEq, padded(link)) }
func to(link string) rule   { return onLink(expr.MetaKeyOIFNAME, expr.CmpOpEq, padded(link)) }

func notFrom(link string) rule { return onLink(expr.MetaKeyIIFNAME, expr.CmpOpNeq, padded(link)) }
func notTo(link string) rule   { return onLink(expr.MetaKeyOIFNAME, expr.CmpOpNeq, padded(link)) }

func onLink(key expr.MetaKey, op expr.CmpOp, name []byte) rule {
	return rule{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: name}}
}

func padded(link string) []byte {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, link)
	return name
}

func protocol(p byte) rule {
	return rule{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p}}}
}

func etherType(t uint16) rule {
	return rule{&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(t)}}
}

// address loads an IPv4 header's source (offset 12) or destination (16).
func address(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

func in(s *nftables.Set) expr.Any { return &expr.Lookup{SourceRegister: 1, SetName: s.Name} }
func notIn(s *nftables.Set) expr.Any {
	return &expr.Lookup{SourceRegister: 1, SetName: s.Name, Invert: true}
}

func destinationPort() expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

func equal(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

// answered matches packets of a connection that the other side began.
func answered() rule {
	return rule{&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Xor: make([]byte, 4),
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}}
}

func (n *network) chain(c *nftables.Conn, t *nftables.Table, kind nftables.ChainType, hook *nftables.ChainHook) *nftables.Chain {
	names := map[*nftables.ChainHook]string{
		nftables.ChainHookPrerouting: "prerouting", nftables.ChainHookInput: "input",
		nftables.ChainHookForward: "forward", nftables.ChainHookPostrouting: "postrouting",
	}
	priority := nftables.ChainPriorityRef(-10) // before rules of the host's own, which may still refuse
	if kind == nftables.ChainTypeNAT {
		priority = nftables.ChainPriorityNATSource
	}
	return c.AddChain(&nftables.Chain{Name: names[hook], Table: t, Type: kind, Hooknum: hook, Priority: priority})
}

func (n *network) addBridgeRules(c *nftables.Conn) {
	t := n.bridgeTable()
	chain := n.chain(c, t, nftables.ChainTypeFilter, nftables.ChainHookPrerouting)
	add := func(exprs []expr.Any) { c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: exprs}) }

	// Links are compared by their common beginning: other bridges are not ours.
	add(onLink(expr.MetaKeyIIFNAME, expr.CmpOpNeq, []byte(n.prefix)).then(accept()))
	own := func(ipOffset uint32) rule {
		return rule{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: registerLink},
			&expr.Payload{DestRegister: registerHardware, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
			&expr.Payload{DestRegister: registerAddress, Base: expr.PayloadBaseNetworkHeader, Offset: ipOffset, Len: 4},
			&expr.Lookup{SourceRegister: registerLink, SetName: setGuests},
		}
	}
	add(when(etherType(unix.ETH_P_IP), own(12)).then(accept()))
	add(when(etherType(unix.ETH_P_ARP), own(14)).then(accept()))
	add(rule{}.then(drop()))
}

func (n *network) addInputRules(c *nftables.Conn) {
	t := n.ipTable()
	chain := n.chain(c, t, nftables.ChainTypeFilter, nftables.ChainHookInput)
	add := func(exprs []expr.Any) { c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: exprs}) }

	gateway := when(rule{address(16), equal(n.gateway().AsSlice())}, protocol(unix.IPPROTO_TCP), rule{destinationPort(), in(n.portSet())})
	add(when(from(n.bridge), gateway).then(accept()))
	add(when(from(n.bridge), answered()).then(accept()))
	add(from(n.bridge).then(drop()))
	// The host itself gets an answer, so that whoever tries sees why.
	add(when(from("lo"), gateway).then(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}))
	add(gateway.then(drop()))
}

func (n *network) addForwardRules(c *nftables.Conn) {
	t := n.ipTable()
	chain := n.chain(c, t, nftables.ChainTypeFilter, nftables.ChainHookForward)
	add := func(exprs []expr.Any) { c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: exprs}) }

	add(when(from(n.bridge), to(n.bridge)).then(drop()))
	add(when(to(n.bridge), answered()).then(accept()))
	add(to(n.bridge).then(drop()))
	add(notFrom(n.bridge).then(accept()))
	add(rule{address(12)}.then(notIn(n.addressSet(setInternet)), drop()))
	for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		add(when(rule{address(16), in(n.addressSet(setNames))}, protocol(p)).then(
			destinationPort(), equal(binaryutil.BigEndian.PutUint16(53)), accept()))
	}
	add(rule{address(16)}.then(in(n.addressSet(setPrivate)), drop()))
	add(rule{}.then(accept()))
}

func (n *network) addNATRules(c *nftables.Conn) {
	t := n.ipTable()
	chain := n.chain(c, t, nftables.ChainTypeNAT, nftables.ChainHookPostrouting)
	mask := []byte{255, 255, 240, 0} // of a /20
	ours := rule{address(12), &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		equal(n.plan.Subnet.Addr().AsSlice())}
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: when(ours, notTo(n.bridge)).then(&expr.Masq{})})
}
