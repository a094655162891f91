package runc

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast"
)

// containerID names a boot to the OCI runtime, in cgroups and in directories.
func containerID(ref holdfast.InstanceRef) string {
	return string(ref.Instance) + "." + strconv.FormatInt(ref.Incarnation, 10)
}

// parseContainerID is containerID's inverse; false for what is not ours.
func parseContainerID(id string) (holdfast.InstanceRef, bool) {
	instance, number, ok := strings.Cut(id, ".")
	if !ok || holdfast.CheckID("instance", holdfast.PrefixInstance, instance) != nil {
		return holdfast.InstanceRef{}, false
	}
	incarnation, err := strconv.ParseInt(number, 10, 64)
	ref := holdfast.InstanceRef{Instance: holdfast.InstanceID(instance), Incarnation: incarnation}
	return ref, err == nil && incarnation > 0 && containerID(ref) == id
}

func (d *Driver) runDirectory() string {
	return filepath.Join(d.config.RunDirectory, d.name)
}

func (d *Driver) instancesDirectory() string {
	return filepath.Join(d.config.Directory, "instances")
}

func (d *Driver) files(ref holdfast.InstanceRef) files {
	return files(filepath.Join(d.instancesDirectory(), containerID(ref)))
}

// files is the directory of one boot: root's alone, since the layer in it may
// hold set-uid files of the guest's making.
type files string

func (f files) path(name string) string { return filepath.Join(string(f), name) }
func (f files) upper() string           { return f.path("upper") }   // the writable layer
func (f files) work() string            { return f.path("work") }    // overlay's own
func (f files) merged() string          { return f.path("merged") }  // the root, mounted only while it is set up
func (f files) run() string             { return f.path("run") }     // /run/holdfast in the guest
func (f files) bundle() string          { return string(f) }         // config.json is here
func (f files) pid() string             { return f.path("pid") }     // the OCI runtime writes it
func (f files) log() string             { return f.path("oci.log") } // of the OCI runtime's create
func (f files) settings() string        { return f.path("settings.json") }
func (f files) prepared() string        { return f.path("prepared") } // a mark: Prepare finished
func (f files) copying() string         { return f.path("copying") }  // a mark: it stands still for a checkpoint, if it does
func (f files) lower() string           { return f.path("lower") }    // links to the layers above the base
func (f files) started() string         { return f.path("started") }  // a mark: guest code may have run

const socketName = "guest.sock"

// settings is what the driver must know of a boot without its Bundle.
type settings struct {
	Index  int             `json:"index"` // of the address in the subnet
	Egress holdfast.Egress `json:"egress"`
	Spool  string          `json:"spool"`
}

func (f files) writeSettings(s settings) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(f.settings(), data, 0o600)
}

// readSettings answers false where there are none, or half of them: they are
// written before anything else is made, so then nothing else was.
func (f files) readSettings() (settings, bool, error) {
	data, err := os.ReadFile(f.settings())
	if errors.Is(err, os.ErrNotExist) {
		return settings{}, false, nil
	}
	if err != nil {
		return settings{}, false, err
	}
	var s settings
	if json.Unmarshal(data, &s) != nil {
		return settings{}, false, nil
	}
	return s, true, nil
}

// exists answers false for what is certainly not there; any other trouble is an
// error, since "not known" is never "gone" (trap T27).
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func mark(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// readPID is the process that the OCI runtime made, 0 when it has not written one.
func (f files) readPID() (int, error) {
	data, err := os.ReadFile(f.pid())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, nil // half written: the OCI runtime knows better
	}
	return pid, nil
}
