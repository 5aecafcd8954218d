package main

import (
	"context"
	"errors"
	"time"

	"github.com/apache/arrow-adbc/go/adbc"
	driver "github.com/apache/arrow-adbc/go/adbc/driver/flightsql"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// session is a connection of the driver and one of the client to the same daemon.
type session struct {
	database   adbc.Database
	connection adbc.Connection
	client     *flightsql.Client
	prepared   *flightsql.PreparedStatement
}

type operation func(*session, context.Context, request) (answer, error)

var driverOperations = map[string]operation{
	"adbc.open":         (*session).open,
	"adbc.query":        (*session).query,
	"adbc.update":       (*session).update,
	"adbc.cancel":       (*session).cancel,
	"adbc.ingest":       (*session).ingest,
	"adbc.objects":      (*session).objects,
	"adbc.table_schema": (*session).tableSchema,
	"adbc.table_types":  (*session).tableTypes,
	"adbc.info":         (*session).info,
	"adbc.commit":       (*session).commit,
	"adbc.autocommit":   (*session).autocommit,
	"adbc.set":          (*session).set,
}

func (s *session) close() {
	if s.connection != nil {
		s.connection.Close()
		s.database.Close()
	}
	if s.client != nil {
		s.client.Close()
	}
}

func (s *session) open(ctx context.Context, asked request) (answer, error) {
	database, err := driver.NewDriver(memory.DefaultAllocator).NewDatabase(asked.Options)
	if err != nil {
		return answer{}, err
	}
	s.database = database
	s.connection, err = database.Open(ctx)
	return answer{}, err
}

// statement returns a statement with the request's SQL, prepared if it has parameters.
func (s *session) statement(ctx context.Context, asked request) (adbc.Statement, error) {
	statement, err := s.connection.NewStatement()
	if err != nil {
		return nil, err
	}
	if err = statement.SetSqlQuery(asked.SQL); err != nil {
		return nil, errors.Join(err, statement.Close())
	}
	if asked.Parameters != nil {
		values, err := unpacked(asked.Parameters)
		if err == nil {
			err = errors.Join(statement.Prepare(ctx), statement.BindStream(ctx, values))
		}
		if err != nil {
			return nil, errors.Join(err, statement.Close())
		}
	}
	return statement, nil
}

func (s *session) query(ctx context.Context, asked request) (answer, error) {
	statement, err := s.statement(ctx, asked)
	if err != nil {
		return answer{}, err
	}
	defer statement.Close()
	reader, _, err := statement.ExecuteQuery(ctx)
	if err != nil {
		return answer{}, err
	}
	return packed(reader)
}

func (s *session) update(ctx context.Context, asked request) (answer, error) {
	statement, err := s.statement(ctx, asked)
	if err != nil {
		return answer{}, err
	}
	defer statement.Close()
	rows, err := statement.ExecuteUpdate(ctx)
	return answer{Rows: &rows}, err
}

// cancel reads so many rows and then cancels the query's context.
func (s *session) cancel(ctx context.Context, asked request) (answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if asked.AfterRows == 0 {
		timer := time.AfterFunc(time.Duration(asked.TimeoutS*float64(time.Second)), cancel)
		defer timer.Stop()
	}
	statement, err := s.statement(ctx, asked)
	if err != nil {
		return answer{}, err
	}
	defer statement.Close()
	reader, _, err := statement.ExecuteQuery(ctx)
	if err != nil {
		return answer{}, err
	}
	defer reader.Release()
	var rows int64
	for reader.Next() {
		rows += reader.RecordBatch().NumRows()
		if asked.AfterRows > 0 && rows >= asked.AfterRows {
			cancel()
		}
	}
	return answer{Rows: &rows}, reader.Err()
}

func (s *session) ingest(ctx context.Context, asked request) (answer, error) {
	statement, err := s.connection.NewStatement()
	if err != nil {
		return answer{}, err
	}
	defer statement.Close()
	options := map[string]string{
		adbc.OptionKeyIngestTargetTable: *asked.Table,
		adbc.OptionKeyIngestMode:        "adbc.ingest.mode." + asked.Mode,
	}
	if asked.Schema != nil {
		options[adbc.OptionValueIngestTargetDBSchema] = *asked.Schema
	}
	if asked.Catalog != nil {
		options[adbc.OptionValueIngestTargetCatalog] = *asked.Catalog
	}
	if asked.Temporary {
		options[adbc.OptionValueIngestTemporary] = adbc.OptionValueEnabled
	}
	for key, value := range options {
		if err = statement.SetOption(key, value); err != nil {
			return answer{}, err
		}
	}
	values, err := unpacked(asked.Parameters)
	if err != nil {
		return answer{}, err
	}
	if err = statement.BindStream(ctx, values); err != nil {
		return answer{}, err
	}
	rows, err := statement.ExecuteUpdate(ctx)
	return answer{Rows: &rows}, err
}

func (s *session) objects(ctx context.Context, asked request) (answer, error) {
	depth := adbc.ObjectDepth(asked.Depth)
	reader, err := s.connection.GetObjects(
		ctx, depth, asked.Catalog, asked.Schema, asked.Table, asked.Column, asked.Types)
	if err != nil {
		return answer{}, err
	}
	return packed(reader)
}

func (s *session) tableSchema(ctx context.Context, asked request) (answer, error) {
	schema, err := s.connection.GetTableSchema(ctx, asked.Catalog, asked.Schema, *asked.Table)
	if err != nil {
		return answer{}, err
	}
	return packedSchema(schema)
}

func (s *session) tableTypes(ctx context.Context, _ request) (answer, error) {
	reader, err := s.connection.GetTableTypes(ctx)
	if err != nil {
		return answer{}, err
	}
	return packed(reader)
}

func (s *session) info(ctx context.Context, asked request) (answer, error) {
	codes := make([]adbc.InfoCode, len(asked.Codes))
	for at, code := range asked.Codes {
		codes[at] = adbc.InfoCode(code)
	}
	reader, err := s.connection.GetInfo(ctx, codes)
	if err != nil {
		return answer{}, err
	}
	return packed(reader)
}

func (s *session) commit(ctx context.Context, _ request) (answer, error) {
	return answer{}, s.connection.Commit(ctx)
}

func (s *session) autocommit(_ context.Context, asked request) (answer, error) {
	options := s.connection.(adbc.PostInitOptions)
	return answer{}, options.SetOption(adbc.OptionKeyAutoCommit, asked.Mode)
}

func (s *session) set(_ context.Context, asked request) (answer, error) {
	options := s.connection.(adbc.PostInitOptions)
	for key, value := range asked.Options {
		if err := options.SetOption(key, value); err != nil {
			return answer{}, err
		}
	}
	return answer{}, nil
}
