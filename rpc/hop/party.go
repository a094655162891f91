package hop

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast"
)

// The parties as they name themselves to each other.
const (
	Orchestrator = "orchestrator"
	Fleet        = "fleet"
	HostAgent    = "host"
)

// ClusterKey authenticates the parties of one cluster to each other.
type ClusterKey []byte

// Token is what party from shows to party to.
func (k ClusterKey) Token(from, to string) string {
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte("holdfast party token v1\x00" + from + "\x00" + to))
	return "hp_" + from + "_" + hex.EncodeToString(mac.Sum(nil))
}

// Secret derives a signing secret for deliveries of a named source.
func (k ClusterKey) Secret(source string) []byte {
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte("holdfast delivery secret v1\x00" + source))
	return mac.Sum(nil)
}

// Require lets only the named parties through to next, which is served by party to.
func (k ClusterKey) Require(to string, from []string, next http.Handler) http.Handler {
	var known [][]byte
	for _, party := range from {
		known = append(known, []byte(k.Token(party, to)))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		ok := slices.ContainsFunc(known, func(one []byte) bool { return hmac.Equal([]byte(token), one) })
		if !ok {
			Fail(w, holdfast.E(holdfast.Unauthenticated, holdfast.ReasonUnknown,
				"not a party of this cluster: start every party with the same --cluster-key-file"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
