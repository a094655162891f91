package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc/hop"
)

// minKey is the shortest cluster key, in bytes.
const minKey = 16

// clusterKey reads the key by which the parties know each other. It is made only
// where every role is in this process: a key of one's own would match nobody's.
func (c Config) clusterKey() (hop.ClusterKey, error) {
	path := c.clusterKeyFile()
	raw, err := os.ReadFile(path)
	switch {
	case err == nil:
		key := hop.ClusterKey(strings.TrimSpace(string(raw)))
		if len(key) < minKey {
			return nil, fmt.Errorf("the cluster key in %s has %d characters, it needs %d: write a random one there, the same for every party", path, len(key), minKey)
		}
		return key, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the cluster key: %w", err)
	case len(c.Roles) < len(Roles()):
		return nil, fmt.Errorf("no cluster key at %s: a party that runs apart needs the key of the others; write a random one (openssl rand -hex 32) and start every party with --cluster-key-file", path)
	}
	key := rand.Text() + rand.Text()
	if err := writeSecret(path, key); err != nil {
		return nil, fmt.Errorf("write the cluster key: %w", err)
	}
	return hop.ClusterKey(key), nil
}

// adminKey reads the admin's API key, or makes it at the first start; fresh says
// that it should be shown, once.
func (c Config) adminKey() (key string, fresh bool, err error) {
	path := filepath.Join(c.DataDir, "admin.key")
	raw, err := os.ReadFile(path)
	if err == nil {
		if key = strings.TrimSpace(string(raw)); strings.HasPrefix(key, "hf_") {
			return key, false, nil
		}
		return "", false, fmt.Errorf("%s holds no API key: remove it, and the next start makes one", path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("read the admin key: %w", err)
	}
	key = "hf_" + strings.ToLower(rand.Text()+rand.Text()[:6])
	if err := writeSecret(path, key); err != nil {
		return "", false, fmt.Errorf("write the admin key: %w", err)
	}
	return key, true, nil
}

// writeSecret makes a file whole or not at all, for its owner alone.
func writeSecret(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// authenticate lets the admin key of the first start in, as an admin in the project
// default, and else whom others, the orchestrator, knows.
func authenticate(adminKey string, others func(context.Context, string) (holdfast.Caller, error)) func(context.Context, string) (holdfast.Caller, error) {
	want := sha256.Sum256([]byte(adminKey))
	return func(ctx context.Context, token string) (holdfast.Caller, error) {
		got := sha256.Sum256([]byte(token))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return others(ctx, token)
		}
		return holdfast.Caller{Project: holdfast.ProjectDefault, Name: "admin", Role: holdfast.RoleAdmin}, nil
	}
}
