package hop

import (
	"encoding/json"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// A level and its answer cross two hops in every lifecycle call. Where they are plain, with strings that need no
// escapes and none of their rarer parts, they are written and read here as encoding/json would, byte for byte, without
// its reflection: that was a twentieth of a create's processor time (measured). Whatever is not plain, and every other
// message, is left to encoding/json.

// encode is json.Marshal.
func encode(v any) ([]byte, error) {
	w := writer{ok: true}
	switch v := v.(type) {
	case *holdfast.Level:
		w.level(v)
	case *holdfast.Observation:
		w.observation(v)
	default:
		w.ok = false
	}
	if w.ok {
		return w.out, nil
	}
	return json.Marshal(v)
}

// unmarshal is json.Unmarshal into something new.
func unmarshal(raw []byte, into any) error {
	r := reader{rest: raw, ok: true}
	switch into := into.(type) {
	case *holdfast.Level:
		if l := r.level(); r.ended() {
			*into = l
			return nil
		}
	case *holdfast.Observation:
		if o := r.observation(); r.ended() {
			*into = o
			return nil
		}
	}
	return json.Unmarshal(raw, into)
}

func (w *writer) level(l *holdfast.Level) {
	w.out = make([]byte, 0, 640)
	w.text(`{"cluster":`, l.Cluster)
	if l.Epoch != 0 {
		w.number(`,"epoch":`, l.Epoch)
	}
	w.text(`,"instance":`, string(l.Instance))
	w.number(`,"incarnation":`, l.Incarnation)
	w.number(`,"generation":`, l.Generation)
	w.text(`,"desired":`, string(l.Desired))
	if s := l.Spec; s != nil {
		w.text(`,"spec":{"owner":`, s.Owner)
		w.text(`,"image":`, s.Image)
		// Without env and layers, and with resources resolved, which is most of them.
		w.ok = w.ok && len(s.Env) == 0 && len(s.Layers) == 0 && s.Resources.CPUMillis != 0 && s.Resources.MemoryBytes != 0 && s.Resources.PIDs != 0
		w.number(`,"resources":{"cpu_millis":`, s.Resources.CPUMillis)
		w.number(`,"memory_bytes":`, s.Resources.MemoryBytes)
		w.number(`,"pids":`, s.Resources.PIDs)
		w.text(`},"egress":`, string(s.Egress))
		w.raw(`}`)
	}
	w.instant(`,"minted_at":`, l.MintedAt)
	w.instant(`,"placed_at":`, l.PlacedAt)
	w.number(`,"wait":`, int64(l.Wait))
	w.raw(`}`)
}

func (r *reader) level() (l holdfast.Level) {
	l.Cluster = r.text(`{"cluster":`)
	if r.next(`,"epoch":`) {
		l.Epoch = r.number("")
	}
	l.Instance = holdfast.InstanceID(r.text(`,"instance":`))
	l.Incarnation = r.number(`,"incarnation":`)
	l.Generation = r.number(`,"generation":`)
	l.Desired = holdfast.Desired(r.text(`,"desired":`))
	if r.next(`,"spec":{"owner":`) {
		s := &holdfast.InstanceSpec{Owner: r.text("")}
		s.Image = r.text(`,"image":`)
		s.Resources.CPUMillis = r.number(`,"resources":{"cpu_millis":`)
		s.Resources.MemoryBytes = r.number(`,"memory_bytes":`)
		s.Resources.PIDs = r.number(`,"pids":`)
		s.Egress = holdfast.Egress(r.text(`},"egress":`))
		r.raw(`}`)
		l.Spec = s
	}
	l.MintedAt = r.instant(`,"minted_at":`)
	l.PlacedAt = r.instant(`,"placed_at":`)
	l.Wait = time.Duration(r.number(`,"wait":`))
	r.raw(`}`)
	return l
}

func (w *writer) observation(o *holdfast.Observation) {
	w.ok = o.Failure == nil && len(o.Ports) == 0
	w.out = make([]byte, 0, 640)
	w.text(`{"instance":`, string(o.Instance))
	w.number(`,"incarnation":`, o.Incarnation)
	w.number(`,"generation":`, o.Generation)
	w.text(`,"state":`, string(o.State))
	w.optional(`,"desired":`, string(o.Desired))
	w.optional(`,"progress":`, o.Progress)
	w.optional(`,"address":`, o.Address)
	w.optional(`,"host":`, string(o.Host))
	w.optional(`,"host_url":`, o.HostURL)
	w.optional(`,"host_health":`, string(o.HostHealth))
	w.optional(`,"host_duty":`, string(o.HostDuty))
	w.optional(`,"boot_id":`, o.BootID)
	w.optional(`,"life":`, o.Life)
	w.instant(`,"at":`, o.At)
	if o.Stale {
		w.raw(`,"stale":true`)
	}
	w.optional(`,"owner":`, o.Owner)
	w.raw(`}`)
}

func (r *reader) observation() (o holdfast.Observation) {
	o.Instance = holdfast.InstanceID(r.text(`{"instance":`))
	o.Incarnation = r.number(`,"incarnation":`)
	o.Generation = r.number(`,"generation":`)
	o.State = holdfast.InstanceState(r.text(`,"state":`))
	o.Desired = holdfast.Desired(r.optional(`,"desired":`))
	o.Progress = r.optional(`,"progress":`)
	o.Address = r.optional(`,"address":`)
	o.Host = holdfast.HostID(r.optional(`,"host":`))
	o.HostURL = r.optional(`,"host_url":`)
	o.HostHealth = holdfast.HostHealth(r.optional(`,"host_health":`))
	o.HostDuty = holdfast.HostDuty(r.optional(`,"host_duty":`))
	o.BootID = r.optional(`,"boot_id":`)
	o.Life = r.optional(`,"life":`)
	o.At = r.instant(`,"at":`)
	o.Stale = r.next(`,"stale":true`)
	o.Owner = r.optional(`,"owner":`)
	r.raw(`}`)
	return o
}
