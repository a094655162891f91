package hostagent

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/audit"
)

// Audit implements holdfast.HostService (contract: F1).
func (a *Agent) Audit(context.Context) (holdfast.PartyAudit, error) {
	return audit.Of(Registry(), a.sweeps, string(a.who.ID)), nil
}
