package host_test

import (
	"context"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc/hop"
	"github.com/holdfast-dev/holdfast/rpc/host"
)

func (a *agent) Audit(context.Context) (holdfast.PartyAudit, error) {
	return holdfast.PartyAudit{Party: holdfast.PartyHostAgent, Name: "ho-1", Reachable: true, Missing: []string{"a cell"}}, nil
}

// contract: F1
func TestF1_AHostsAuditCrossesTheHop(t *testing.T) {
	url, key, _, _ := serve(t)
	part, err := host.Dial(from(url, key, hop.Fleet)).Audit(t.Context())
	if err != nil || part.Name != "ho-1" || !part.Reachable || len(part.Missing) != 1 {
		t.Errorf("%+v, %v", part, err)
	}
}
