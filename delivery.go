package holdfast

// DeliveryKind names what an event reports (contract: B1–B8).
type DeliveryKind string

// The kinds of deliveries, with their hop and body.
const (
	DeliveryReady    DeliveryKind = "instance.ready"    // H5, guest → orchestrator: GuestReport
	DeliveryFailed   DeliveryKind = "instance.failed"   // H5, guest → orchestrator: GuestReport
	DeliveryObserved DeliveryKind = "instance.observed" // H7, host → fleet: Observation
	DeliveryExited   DeliveryKind = "instance.exited"   // H8, fleet → orchestrator: Observation
)

// The telemetry kinds: fire and forget (contract: B6).
const (
	TelemetryGuest     DeliveryKind = "guest.telemetry" // H6
	TelemetryHeartbeat DeliveryKind = "host.heartbeat"  // H7: Heartbeat
)

// The headers by which a guest's delivery names its boot; its signature, by that
// boot's secret, proves it (contract: B8).
const (
	HeaderInstance    = "Holdfast-Instance"
	HeaderIncarnation = "Holdfast-Incarnation"
)

// GuestReport is what a guest says of its own boot.
type GuestReport struct {
	Instance    InstanceID `json:"instance"`
	Incarnation int64      `json:"incarnation"`
	Failure     *Failure   `json:"failure,omitempty"`
}
