package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-dev/holdfast/store"
)

// The server's error codes (SQLSTATE) that are told apart.
const (
	codeSerialization   = "40001"
	codeDeadlock        = "40P01"
	codeFeature         = "0A000"
	codeBadPassword     = "28P01"
	codeNotAuthorized   = "28000"
	codeNoDatabase      = "3D000"
	codeNoPrivilege     = "42501"
	codeReadOnly        = "25006"
	codeTooManySessions = "53300"
	codeDiskFull        = "53100"
	codeStarting        = "57P03"
)

// code is the server's code for an error; "" when it is not the server's.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// again reports whether the server ended a transaction only because of others, so that it may succeed when it runs
// again: a deadlock's victim, a conflict, or a plan made before another replica changed the schema (contract: D3).
func again(err error) bool {
	switch code(err) {
	case codeSerialization, codeDeadlock:
		return true
	case codeFeature:
		return strings.Contains(err.Error(), "cached plan must not change result type")
	}
	return false
}

// rolledBack reports whether a failed COMMIT's error is the server's word that nothing was committed. Anything else,
// also a session that the server ended meanwhile, leaves it open.
func rolledBack(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(e.Code, "08")
}

// own keeps the end of a context that is not the caller's, such as a connection's time to be made, from passing for it.
func own(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer in time: %s", err.Error())
	}
	return err
}

// explain adds to an error of opening what a person can do about it.
func explain(err error, conn *pgx.ConnConfig) error {
	if errors.Is(err, store.ErrNewerSchema) {
		return err
	}
	if hint := hint(err, conn); hint != "" {
		return fmt.Errorf("%s: %w", hint, err)
	}
	return err
}

func hint(err error, conn *pgx.ConnConfig) string {
	if errors.Is(err, errReadOnly) {
		return readOnlyHint
	}
	switch code(err) {
	case codeBadPassword, codeNotAuthorized:
		return fmt.Sprintf("the server refuses the user %q: correct user and password in the URL, or the server's pg_hba.conf", conn.User)
	case codeNoDatabase:
		return fmt.Sprintf("there is no database %q: create it (createdb %s), or correct the URL", conn.Database, conn.Database)
	case codeNoPrivilege:
		return fmt.Sprintf("the user %q lacks a right: GRANT CREATE, CONNECT ON DATABASE %s TO %s, and let it own the schema",
			conn.User, conn.Database, conn.User)
	case codeReadOnly:
		return readOnlyHint
	case codeTooManySessions:
		return "the server has no connection left: raise its max_connections, or stop what holds them"
	case codeDiskFull:
		return "the server's disk is full: free some space there"
	case codeStarting:
		return "the server is starting up or shutting down: try again in a moment"
	}
	var network *net.OpError
	var name *net.DNSError
	switch {
	case errors.As(err, &name):
		return fmt.Sprintf("the host %q has no address: correct the URL, or the name service", name.Name)
	case errors.As(err, &network) && network.Op == "dial", errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no PostgreSQL server answers at %s: start it, or correct the URL", address(conn))
	}
	return ""
}

const readOnlyHint = "the server takes no writes: it is a standby, or default_transaction_read_only is set; name the primary in the URL " +
	"(several hosts, with commas, are tried in turn)"
