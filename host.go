package holdfast

import "time"

// Host is a machine that runs instances, as the fleet knows it.
type Host struct {
	ID        HostID     `json:"id"`
	Name      string     `json:"name"`
	URL       string     `json:"url"`
	Health    HostHealth `json:"health"`
	Duty      HostDuty   `json:"duty"`
	Runtime   string     `json:"runtime"`
	BootID    string     `json:"boot_id"`
	Capacity  Capacity   `json:"capacity"`
	Used      Capacity   `json:"used"`
	SeenAt    time.Time  `json:"seen_at"`
	CreatedAt time.Time  `json:"created_at"`
}

// Capacity is what a host can hold.
type Capacity struct {
	CPUMillis   int64 `json:"cpu_millis"`
	MemoryBytes int64 `json:"memory_bytes"`
	Instances   int64 `json:"instances"`
}

// Heartbeat is a host's telemetry to the fleet; the first one registers it (H7,
// contract: B6, D3).
type Heartbeat struct {
	Host     HostID    `json:"host"`
	Cluster  string    `json:"cluster"`
	Name     string    `json:"name"`
	URL      string    `json:"url"`
	Runtime  string    `json:"runtime"`
	BootID   string    `json:"boot_id"`
	Capacity Capacity  `json:"capacity"`
	Sequence int64     `json:"sequence"` // rises over restarts; an older one changes nothing
	At       time.Time `json:"at"`
}
