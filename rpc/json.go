package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast"
)

// JSON writes a domain value as the API's JSON does (protojson: lowerCamelCase,
// 64-bit numbers as strings, bytes as base64), on one line. A list without
// entries shows that it is one.
func JSON(value any) ([]byte, error) {
	m, err := message(value)
	if err != nil {
		return nil, err
	}
	raw, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write %T as JSON: %w", value, err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil { // protojson spaces at random
		return nil, fmt.Errorf("write %T as JSON: %w", value, err)
	}
	if out.String() == "{}" {
		if name := listName(value); name != "" {
			return []byte(`{"` + name + `":[]}`), nil
		}
	}
	return out.Bytes(), nil
}

func listName(value any) string {
	switch value.(type) {
	case holdfast.SandboxPage:
		return "sandboxes"
	case holdfast.OperationPage:
		return "operations"
	case []holdfast.Host:
		return "hosts"
	case holdfast.InstancePage:
		return "instances"
	case []holdfast.Process:
		return "processes"
	case []holdfast.FileInfo:
		return "files"
	case holdfast.AuditMatrix:
		return "parties"
	case holdfast.ProjectPage:
		return "projects"
	case holdfast.KeyPage:
		return "keys"
	case holdfast.CheckpointPage:
		return "checkpoints"
	case holdfast.SessionPage:
		return "sessions"
	case holdfast.WebhookPage:
		return "webhooks"
	case holdfast.DeadLetterPage:
		return "deadLetters"
	case holdfast.HookPage:
		return "hooks"
	case holdfast.HookActionPage:
		return "actions"
	case holdfast.DeliveryPage:
		return "deliveries"
	case holdfast.TaskPage:
		return "tasks"
	case holdfast.EnvironmentPage:
		return "environments"
	case holdfast.BuildPage:
		return "builds"
	}
	return ""
}

func message(value any) (proto.Message, error) {
	switch value := value.(type) {
	case holdfast.Sandbox:
		return sandboxToWire(value), nil
	case holdfast.SandboxEvent:
		return eventToWire(value), nil
	case holdfast.SandboxPage:
		return pageToWire(value), nil
	case holdfast.Operation:
		return operationToWire(value), nil
	case holdfast.OperationPage:
		return journalToWire(value), nil
	case holdfast.Process:
		return processToWire(value), nil
	case []holdfast.Process:
		return processesToWire(value), nil
	case holdfast.OutputChunk:
		return chunkToWire(value), nil
	case holdfast.FileInfo:
		return infoToWire(value), nil
	case []holdfast.FileInfo:
		return entriesToWire(value), nil
	case holdfast.FileWritten:
		return writtenToWire(value), nil
	case holdfast.AuditMatrix:
		return matrixToWire(value), nil
	case holdfast.Project:
		return projectToWire(value), nil
	case holdfast.ProjectPage:
		return projectsToWire(value), nil
	case holdfast.Key:
		return keyToWire(value), nil
	case holdfast.CreatedKey:
		return createdKeyToWire(value), nil
	case holdfast.KeyPage:
		return keysToWire(value), nil
	case holdfast.Session:
		return sessionToWire(value), nil
	case holdfast.SessionPage:
		return sessionsToWire(value), nil
	case holdfast.Checkpoint:
		return checkpointToWire(value), nil
	case holdfast.CheckpointPage:
		return checkpointsToWire(value), nil
	case holdfast.Event:
		return happenedToWire(value), nil
	case holdfast.DeliveryPage:
		return deliveriesToWire(value), nil
	case holdfast.Task:
		return taskToWire(value), nil
	case holdfast.TaskPage:
		return tasksToWire(value), nil
	case holdfast.Environment:
		return environmentToWire(value), nil
	case holdfast.EnvironmentPage:
		return environmentsToWire(value), nil
	case holdfast.Build:
		return buildToWire(value), nil
	case holdfast.BuildPage:
		return buildsToWire(value), nil
	case *holdfast.Error:
		return errorToWire(value), nil
	case holdfast.Host:
		return hostToWire(value), nil
	case []holdfast.Host:
		return hostsToWire(value), nil
	case holdfast.InstancePage:
		return instancesToWire(value), nil
	}
	if m := hookMessage(value); m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("%T has no JSON form", value)
}

// hookMessage is message for webhooks, out and in; nil for anything else.
func hookMessage(value any) proto.Message {
	switch value := value.(type) {
	case holdfast.CreatedWebhook:
		return createdWebhookToWire(value)
	case holdfast.WebhookPage:
		return webhooksToWire(value)
	case holdfast.DeadLetterPage:
		return deadLettersToWire(value)
	case holdfast.Replayed:
		return replayedToWire(value)
	case holdfast.CreatedHook:
		return createdHookToWire(value)
	case holdfast.HookPage:
		return hooksToWire(value)
	case holdfast.HookAction:
		return actionToWire(value)
	case holdfast.HookActionPage:
		return actionsToWire(value)
	}
	return nil
}
