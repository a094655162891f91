package hostagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// sequenceStride separates the heartbeat numbers of one run of the agent from
// the next one's: at one a second, 34 years of one run.
const sequenceStride = 1 << 30

// identity is who this host is, minted once, kept in DIRECTORY/host.json.
type identity struct {
	ID   holdfast.HostID `json:"id"`
	Runs int64           `json:"runs"` // raised by every start: heartbeat numbers rise over restarts
	// Whom it obeys (trap T52): learnt from the first order, kept for ever.
	Cluster string `json:"cluster,omitempty"`
	Epoch   int64  `json:"epoch,omitempty"` // the highest seen
}

// loadIdentity reads or mints the identity and counts this run. An identity that
// cannot be read is an error, never a new one: the fleet would take this host
// and all its instances for lost.
func loadIdentity(dir string, mint func() string) (identity, error) {
	path := filepath.Join(dir, "host.json")
	var who identity
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		who.ID = holdfast.HostID(mint())
	case err != nil:
		return who, fmt.Errorf("read the host's identity: %w", err)
	default:
		err := json.Unmarshal(raw, &who)
		if err == nil {
			err = holdfast.CheckID("id", holdfast.PrefixHost, string(who.ID))
		}
		if err != nil {
			return who, fmt.Errorf("%s is damaged; restore it, or empty the directory to make this a new host: %w", path, err)
		}
	}
	who.Runs++
	return who, who.save(dir)
}

func (who identity) save(dir string) error {
	raw, err := json.Marshal(who)
	if err == nil {
		err = replaceFile(filepath.Join(dir, "host.json"), raw, true)
	}
	if err != nil {
		return fmt.Errorf("keep the host's identity: %w", err)
	}
	return nil
}

// lockDirectory makes sure that one agent alone converges what is under dir.
func lockDirectory(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "host.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, readErr := os.ReadFile(f.Name())
		return nil, errors.Join(
			fmt.Errorf("%s is in use by another host agent (process %s): stop it first, or give this one a directory of its own",
				dir, strings.TrimSpace(string(holder))),
			readErr, f.Close())
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return f, nil
}
