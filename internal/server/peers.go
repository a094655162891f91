package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// peersSuffix ends the name that stands for all replicas of a party.
const peersSuffix = ".replicas"

// peers are the addresses of each party that has several replicas, by the name
// that stands for them.
type peers struct {
	dial net.Dialer
	turn atomic.Uint64

	mu sync.Mutex
	at map[string][]string // host:port
}

func newPeers() *peers {
	return &peers{dial: net.Dialer{Timeout: 5 * time.Second}, at: map[string][]string{}}
}

// name gives one URL for a list of them: itself if it is alone.
func (p *peers) name(role Role, list string) string {
	urls := splitURLs(list)
	if len(urls) < 2 {
		return trimURL(list)
	}
	name := string(role) + peersSuffix
	all := make([]string, len(urls))
	for i, u := range urls {
		all[i] = hostPort(u)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[name] = all
	return "http://" + name
}

// DialContext reaches an address, or any of the replicas that a name stands for:
// another one only while no connection was made, so that nothing was sent and no
// call is made twice (trap T22). New connections take turns.
func (p *peers) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	all := p.at[host]
	p.mu.Unlock()
	if len(all) == 0 {
		return p.dial.DialContext(ctx, network, address)
	}
	first := p.turn.Add(1)
	var errs []error
	for i := range all {
		c, err := p.dial.DialContext(ctx, network, all[(first+uint64(i))%uint64(len(all))])
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func splitURLs(list string) []string {
	var out []string
	for _, u := range strings.Split(list, ",") {
		if u = strings.TrimSpace(u); u != "" {
			out = append(out, u)
		}
	}
	return out
}

// checkURLs accepts one URL, or several that differ in their address alone.
func checkURLs(flag, list string) error {
	urls := splitURLs(list)
	for _, u := range urls {
		if err := checkURL(flag, u); err != nil {
			return err
		}
		if at, _ := url.Parse(u); len(urls) > 1 && (at.Scheme != "http" || strings.Trim(at.Path, "/") != "") {
			return fmt.Errorf("%s names several addresses, so each is like http://10.0.0.5:7420, not %q: put a balancer before what speaks https", flag, u)
		}
	}
	return nil
}

// hostPort is the address of a URL that was checked.
func hostPort(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "80")
	}
	return u.Host
}
