package clienttest

import (
	"context"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast"
)

// AddHost makes a host known.
func (f *Fake) AddHost(h holdfast.Host) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hosts[h.ID] = &h
}

// ListHosts lists the hosts that were added.
func (f *Fake) ListHosts(ctx context.Context) (out []holdfast.Host, err error) {
	err = f.do(ctx, Call{Method: "ListHosts"}, func() error {
		for _, h := range f.hosts {
			out = append(out, *h)
		}
		slices.SortFunc(out, func(a, b holdfast.Host) int { return strings.Compare(string(a.ID), string(b.ID)) })
		return nil
	})
	return out, err
}

// SetHostDuty changes a host's record, without a fleet's rules.
func (f *Fake) SetHostDuty(ctx context.Context, in holdfast.SetHostDuty) (out holdfast.Host, err error) {
	err = f.do(ctx, Call{Method: "SetHostDuty", In: in}, func() error {
		if err := in.Validate(); err != nil {
			return err
		}
		h := f.hosts[in.Host]
		if h == nil {
			return unknown("host", string(in.Host))
		}
		h.Duty, h.DutyReason, h.DutyAt = in.Duty, in.Reason, f.now()
		out = *h
		return nil
	})
	return out, err
}

// FindInstances has one running instance on each host, two pages of one.
func (f *Fake) FindInstances(ctx context.Context, in holdfast.FindInstances) (out holdfast.InstancePage, err error) {
	err = f.do(ctx, Call{Method: "FindInstances", In: in}, func() error {
		if err := in.Validate(); err != nil {
			return err
		}
		for n, id := range []holdfast.InstanceID{"in-00000000000000000000000001", "in-00000000000000000000000002"} {
			if id > in.After && len(out.Instances) == 0 {
				out.Instances = append(out.Instances, holdfast.Observation{Instance: id, Incarnation: 1, State: holdfast.InstanceRunning, Host: in.Host, Owner: "sb-1"})
				if n == 0 {
					out.Next = string(id)
				}
			}
		}
		return nil
	})
	return out, err
}
