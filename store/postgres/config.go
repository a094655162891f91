package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// Times of a connection.
const (
	connectTimeout = 5 * time.Second
	// silence is how long a server that acknowledges nothing is waited for: one whose machine died sends no word.
	silence = 20 * time.Second
)

// settings are each session's, unless the URL says otherwise.
func settings() map[string]string {
	return map[string]string{
		"application_name": "holdfast",
		// A process that was stopped within a transaction must not keep its locks from the other replicas for ever.
		"idle_in_transaction_session_timeout": "10s",
		// Whoever waits for a lock longer than holders are allowed to be idle is told so, instead of waiting for ever.
		"lock_timeout": "20s",
	}
}

var schemaName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

func (cfg Config) withDefaults() (Config, error) {
	if !schemaName.MatchString(cfg.Schema) {
		return cfg, fmt.Errorf("the schema %q must be lower-case letters, digits and underscores", cfg.Schema)
	}
	if cfg.MaxConns < 0 || cfg.Tries < 0 || cfg.CommitTimeout < 0 {
		return cfg, errors.New("limits must not be negative")
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 16
	}
	cfg.MaxConns = max(cfg.MaxConns, 2) // migrations hold their lock on a connection of its own
	if cfg.Tries == 0 {
		cfg.Tries = 10
	}
	if cfg.CommitTimeout == 0 {
		cfg.CommitTimeout = 30 * time.Second
	}
	return cfg, nil
}

// parse reads the URL. Its errors do not repeat it, since it may hold a password.
func (cfg Config) parse() (*pgx.ConnConfig, error) {
	const like = "it must be like postgres://user:password@host:5432/database"
	u, err := url.Parse(cfg.URL)
	if err != nil {
		var e *url.Error
		if errors.As(err, &e) {
			err = e.Err
		}
		return nil, fmt.Errorf("the database's URL cannot be read, %s: %w", like, err)
	}
	if u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, fmt.Errorf("the database's URL begins with %q, %s", u.Scheme, like)
	}
	conn, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		var e *pgconn.ParseConfigError
		if errors.As(err, &e) && e.Unwrap() != nil {
			err = e.Unwrap()
		}
		return nil, fmt.Errorf("the database's URL cannot be used, %s: %w", like, err)
	}
	for name, value := range settings() {
		if _, given := conn.RuntimeParams[name]; !given {
			conn.RuntimeParams[name] = value
		}
	}
	conn.RuntimeParams["search_path"] = cfg.Schema
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = connectTimeout
	}
	conn.DialFunc = dial
	if conn.ValidateConnect == nil {
		conn.ValidateConnect = writable
	}
	return conn, nil
}

// dial notices a server that is gone without a word.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 4, Count: 2},
		Control: func(network, _ string, c syscall.RawConn) error {
			if network == "unix" {
				return nil
			}
			var set error
			err := c.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
			})
			return errors.Join(err, set)
		},
	}
	return d.DialContext(ctx, network, address)
}

var errReadOnly = errors.New("the server takes no writes")

// writable refuses a standby at each connect, so that after a failover the pool finds the primary, and makes commits
// durable where the server's default is that they are not.
func writable(ctx context.Context, c *pgconn.PgConn) error {
	results, err := c.Exec(ctx, `SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool;
		SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`).ReadAll()
	if err != nil {
		return err
	}
	if string(results[0].Rows[0][0]) == "t" {
		return errReadOnly
	}
	return nil
}

// address is where the server is, for people.
func address(conn *pgx.ConnConfig) string {
	if _, local := pgconn.NetworkAddress(conn.Host, conn.Port); local != "" && conn.Host != "" && conn.Host[0] == '/' {
		return local
	}
	return net.JoinHostPort(conn.Host, strconv.Itoa(int(conn.Port)))
}
