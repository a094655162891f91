package fleet

import (
	"context"
	"fmt"
	"sync"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/audit"
)

// Audit implements holdfast.FleetService: this replica's own part first, then
// each host's, by id (contract: F1). The hosts are asked all at once, within
// Limits.AskTimeout; one that its operators retired is not asked.
func (s *Service) Audit(ctx context.Context) ([]holdfast.PartyAudit, error) {
	own := audit.Of(Registry(), s.sweeps, s.holder)
	ctx, cancel := context.WithTimeout(ctx, s.limits.AskTimeout)
	defer cancel()
	all, err := s.ListHosts(ctx)
	if err != nil {
		own.Problem = "its hosts are not known: " + err.Error()
		return []holdfast.PartyAudit{own}, nil
	}
	var hosts []holdfast.Host
	for _, h := range all {
		if h.Duty != holdfast.HostRetired {
			hosts = append(hosts, h)
		}
	}
	parts := make([]holdfast.PartyAudit, 1+len(hosts))
	parts[0] = own
	var asked sync.WaitGroup
	for i, h := range hosts {
		asked.Go(func() { parts[1+i] = s.auditOf(ctx, h) })
	}
	asked.Wait()
	return parts, nil
}

// auditOf asks one host.
func (s *Service) auditOf(ctx context.Context, h holdfast.Host) holdfast.PartyAudit {
	who := holdfast.PartyAudit{Party: holdfast.PartyHostAgent, Name: string(h.ID)}
	return audit.Ask(ctx, s.limits.AskTimeout, who, func(ctx context.Context) ([]holdfast.PartyAudit, error) {
		part, err := s.dial(h.URL).Audit(ctx)
		if err == nil && (part.Party != who.Party || part.Name != who.Name) {
			err = fmt.Errorf("at its address answers %s %s", part.Party, part.Name)
		}
		return []holdfast.PartyAudit{part}, err
	})[0]
}
