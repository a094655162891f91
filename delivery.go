package holdfast

import "time"

// DeliveryKind names what an event reports (contract: B1–B8).
type DeliveryKind string

// The kinds of deliveries, with their hop and body.
const (
	DeliveryReady        DeliveryKind = "instance.ready"     // H5, guest → orchestrator: GuestReport
	DeliveryFailed       DeliveryKind = "instance.failed"    // H5, guest → orchestrator: GuestReport
	DeliveryTaskComplete DeliveryKind = "task.complete"      // H5, guest → orchestrator: ProcessReport
	DeliverySetupReady   DeliveryKind = "environment.ready"  // H5, guest → orchestrator: ProcessReport
	DeliverySetupFailed  DeliveryKind = "environment.failed" // H5, guest → orchestrator: ProcessReport
	DeliveryObserved     DeliveryKind = "instance.observed"  // H7, host → fleet: Observation
	DeliveryExited       DeliveryKind = "instance.exited"    // H8, fleet → orchestrator: Observation
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

// MaxReportTail bounds a ProcessReport's log tail, in bytes.
const MaxReportTail = 4 << 10

// ProcessReport is what a guest says of a process that has ended (StartProcess.Report).
type ProcessReport struct {
	Instance    InstanceID `json:"instance"`
	Incarnation int64      `json:"incarnation"`
	Process     ProcessID  `json:"process"`
	RequestID   string     `json:"request_id"`
	ExitCode    int        `json:"exit_code"`
	StartedAt   time.Time  `json:"started_at"`
	FinishedAt  time.Time  `json:"finished_at"`
	LogTail     string     `json:"log_tail,omitempty"` // the last of what it wrote, for a person
}
