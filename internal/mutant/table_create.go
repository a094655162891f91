package mutant

// creates are the traps of an idempotent create: what is a repeat, and of what.
func creates() []Mutant {
	return []Mutant{
		{
			Name: "T1", Trap: 1, File: "client/sandbox.go",
			Mistake: "the client mints a request id for each attempt instead of for the call, so a create whose answer was lost is repeated as another one",
			Edits: edit("\t\treturn c.services.Sandboxes.CreateSandbox(ctx, c.caller, in)",
				"\t\tif minted {\n\t\t\tin.RequestID = NewRequestID()\n\t\t}\n\t\treturn c.services.Sandboxes.CreateSandbox(ctx, c.caller, in)"),
			Noticed: noticed(tests("client", "TestT1_ALostAnswerMakesNoSecondSandbox")),
		},
		{
			Name: "T2", Trap: 2, File: "orchestrator/request.go",
			Mistake: "only the fields of the recorded request are compared, so a repeat that sends more passes for the same",
			Edits:   edit("\tfor name := range other.Fields {\n\t\tif _, ok := f.Fields[name]; !ok {\n\t\t\tnames = append(names, name)\n\t\t}\n\t}\n", ""),
			Noticed: noticed(tests("orchestrator", "TestA3_T2_OtherInputIsRefusedNamingTheFields", "TestT2_ARepeatThatSendsMoreIsOtherInput")),
		},
		{
			Name: "T3", Trap: 3, File: "orchestrator/request.go",
			Mistake: "a request id whose sandbox was deleted is free again, so a late repeat creates another one",
			Edits: edit("VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
				"VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (project, method, request_id) DO UPDATE SET resource = excluded.resource, fingerprint = excluded.fingerprint\n"+
					"\t\tWHERE EXISTS (SELECT 1 FROM sandbox s WHERE s.id = request.resource AND s.state = 'DELETED')"),
			Noticed: noticed(tests("orchestrator", "TestA3_T3_RepeatAfterDeleteIsTheTombstone")),
		},
		{
			Name: "T4", Trap: 4, File: "orchestrator/begin.go",
			Mistake: "request ids are taken for unique by themselves, so one project's create answers another's",
			Edits:   edit("requestKey{project: caller.Project, method:", "requestKey{project: holdfast.ProjectDefault, method:"),
			Noticed: noticed(tests("orchestrator", "TestA3_T4_RequestIDsAreScopedByProject")),
		},
		{
			Name: "T5", Trap: 5, File: "orchestrator/purge.go",
			Mistake: "a tombstone that goes takes its request key along, like everything else of the sandbox",
			Edits: edit("\tif _, err := p.tx.ExecContext(ctx, `DELETE FROM sandbox_label WHERE sandbox IN `+marks, args...); err != nil {\n",
				"\tif _, err := p.tx.ExecContext(ctx, `DELETE FROM request WHERE resource IN `+marks, args...); err != nil {\n\t\treturn fmt.Errorf(\"purge requests: %w\", err)\n\t}\n"+
					"\tif _, err := p.tx.ExecContext(ctx, `DELETE FROM sandbox_label WHERE sandbox IN `+marks, args...); err != nil {\n"),
			Noticed: noticed(tests("orchestrator", "TestT5_NoSweepTakesARequestKeyHoweverOld")),
		},
	}
}

// recordedKeys are the traps of what is remembered under a request id, and when.
func recordedKeys() []Mutant {
	return []Mutant{
		{
			Name: "T6", Trap: 6, File: "orchestrator/decide.go",
			Mistake: "that no host has room is an answer, so the create is ended by it, for ever under this request id",
			Edits:   edit("judgement{outcome: outcomeWait, answered: true, waitsFor: \"capacity\", err: e}", "judgement{outcome: outcomeRefused, answered: true, err: e}"),
			Noticed: noticed(tests("orchestrator", "TestT6_ATransientFailureStaysPendingAndTheRepeatCarriesItOn")),
		},
		{
			Name: "T7", Trap: 7, File: "orchestrator/begin.go",
			Mistake: "the key is reserved in a transaction of its own, before the lifetime is checked, so a corrected repeat is refused as other input",
			Edits: []Edit{
				{"\tvar b begun\n\terr := s.update(ctx, \"create sandbox\"", "\tvar b begun\n\tvar existing string\n" +
					"\terr := s.update(ctx, \"reserve\", func(tx store.Tx, now time.Time) (err error) {\n\t\texisting, err = reserve(ctx, tx, now, key, f, string(fresh.ID))\n\t\treturn err\n\t})\n" +
					"\tif err != nil {\n\t\treturn b, err\n\t}\n\terr = s.update(ctx, \"create sandbox\""},
				{"\t\texisting, err := reserve(ctx, tx, now, key, f, string(fresh.ID))\n\t\tif err != nil {\n\t\t\treturn err\n\t\t}\n", "\t\tvar err error\n"},
			},
			Noticed: noticed(tests("orchestrator", "TestA3_T7_NothingIsReservedForWrongInput")),
		},
		{
			Name: "T8", Trap: 8, File: "orchestrator/request.go",
			Mistake: "the key is reserved or read in one round trip, and a statement does not see the row that its own insert waited for",
			Edits: edit("\tres, err := tx.ExecContext(ctx, `INSERT INTO request (",
				"\tif tx.ForUpdate() != \"\" {\n\t\terr := tx.QueryRowContext(ctx, `WITH made AS (INSERT INTO request (project, method, request_id, fingerprint, resource, created_at)\n"+
					"\t\t\tVALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING resource)\n"+
					"\t\t\tSELECT '' FROM made UNION ALL SELECT resource FROM request WHERE project = $1 AND method = $2 AND request_id = $3`,\n"+
					"\t\t\tstring(key.project), key.method, key.id, string(raw), resource, store.Micros(now)).Scan(&existing)\n"+
					"\t\tif err != nil && !errors.Is(err, sql.ErrNoRows) {\n\t\t\treturn \"\", fmt.Errorf(\"reserve request %s: %w\", key.id, err)\n\t\t}\n\t\treturn existing, nil\n\t}\n"+
					"\tres, err := tx.ExecContext(ctx, `INSERT INTO request ("),
			Noticed: noticed(tests("orchestrator", "TestOnPostgres/TestT8_ARepeatThatWaitedForTheFirstsCommitSeesIt")),
		},
		{
			Name: "T9", Trap: 9, File: "orchestrator/request.go",
			Mistake: "a field that newer servers know is in every fingerprint, so a request from before it is other input",
			Edits:   edit("{\"restart\", in.Restart != \"\", in.Restart}", "{\"restart\", true, in.Restart}"),
			Noticed: noticed(tests("orchestrator", "TestA3_T9_ARequestFromBeforeRestartPoliciesIsStillKnown", "TestA3_T9_AFieldThatWasNotSentIsNotInTheFingerprint")),
		},
		{
			Name: "T10", Trap: 10, File: "orchestrator/request.go",
			Mistake: "fields are hashed in an encoding that is not canonical: maps come in any order, as in protobuf's bytes",
			Edits: []Edit{
				{"import (\n", "import (\n\t\"bytes\"\n\t\"encoding/gob\"\n"},
				{"\t\traw, err := json.Marshal(one.v) // maps are written in the order of their keys\n",
					"\t\tvar encoded bytes.Buffer\n\t\terr := gob.NewEncoder(&encoded).Encode(one.v)\n\t\traw := encoded.Bytes()\n"},
			},
			Noticed: noticed(tests("orchestrator", "TestT10_AFingerprintIsTheSameHoweverAMapIsOrdered")),
		},
	}
}
