package orchestrator

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/audit"
)

// GetMatrix implements holdfast.AuditService: this replica's own part first, then
// what the fleet says of itself and of its hosts (contract: F1). Several replicas
// have the same registry, and sweeps of their own: who asks is told about the one
// that answers.
func (s *Service) GetMatrix(ctx context.Context, _ holdfast.Caller) (holdfast.AuditMatrix, error) {
	matrix := holdfast.AuditMatrix{Parties: []holdfast.PartyAudit{audit.Of(Registry(), s.sweeps, s.config.Process)}}
	fleet := holdfast.PartyAudit{Party: holdfast.PartyFleet}
	matrix.Parties = append(matrix.Parties, audit.Ask(ctx, holdfast.AuditWait, fleet, s.config.Fleet.Audit)...)
	return matrix, nil
}
