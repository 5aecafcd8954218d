package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/flight/flightsql"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

var clientOperations = map[string]operation{
	"open":            (*session).openClient,
	"execute":         (*session).execute,
	"execute_schema":  (*session).executeSchema,
	"update":          (*session).executeUpdate,
	"prepare":         (*session).prepare,
	"run_prepared":    (*session).runPrepared,
	"close_prepared":  (*session).closePrepared,
	"cancel":          (*session).cancelInfo,
	"cancel_query":    (*session).cancelQuery,
	"begin":           (*session).begin,
	"substrait":       (*session).substrait,
	"poll":            (*session).poll,
	"session_options": (*session).sessionOptions,
	"close_session":   (*session).closeSession,
	"renew":           (*session).renew,
	"metadata":        (*session).metadata,
	"metadata_schema": (*session).metadataSchema,
}

// openClient connects; the options are address, ca (a PEM file) and token.
func (s *session) openClient(_ context.Context, asked request) (answer, error) {
	transport := insecure.NewCredentials()
	if file := asked.Options["ca"]; file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return answer{}, err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		transport = credentials.NewTLS(&tls.Config{RootCAs: pool})
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	client, err := flightsql.NewClient(asked.Options["address"], nil, nil, options...)
	if err != nil {
		return answer{}, err
	}
	s.client = client
	return answer{}, nil
}

// read returns the rows of all endpoints.
func (s *session) read(ctx context.Context, info *flight.FlightInfo, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	if len(info.Endpoint) != 1 {
		return answer{}, errors.New("the answer has more than one endpoint")
	}
	reader, err := s.client.DoGet(ctx, info.Endpoint[0].Ticket)
	if err != nil {
		return answer{}, err
	}
	announced, err := flight.DeserializeSchema(info.Schema, s.client.Alloc)
	if err != nil {
		return answer{}, err
	}
	if !announced.Equal(reader.Schema()) {
		return answer{}, errors.New("the schema of the stream is another than the announced one")
	}
	return packed(reader)
}

func schemaOf(s *session, result *flight.SchemaResult, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	schema, err := flight.DeserializeSchema(result.Schema, s.client.Alloc)
	if err != nil {
		return answer{}, err
	}
	return packedSchema(schema)
}

func (s *session) execute(ctx context.Context, asked request) (answer, error) {
	info, err := s.client.Execute(ctx, asked.SQL)
	return s.read(ctx, info, err)
}

func (s *session) executeSchema(ctx context.Context, asked request) (answer, error) {
	result, err := s.client.GetExecuteSchema(ctx, asked.SQL)
	return schemaOf(s, result, err)
}

func (s *session) executeUpdate(ctx context.Context, asked request) (answer, error) {
	rows, err := s.client.ExecuteUpdate(ctx, asked.SQL)
	return answer{Rows: &rows}, err
}

func (s *session) prepare(ctx context.Context, asked request) (answer, error) {
	prepared, err := s.client.Prepare(ctx, asked.SQL)
	if err != nil {
		return answer{}, err
	}
	s.prepared = prepared
	return packedSchema(prepared.ParameterSchema())
}

func (s *session) runPrepared(ctx context.Context, asked request) (answer, error) {
	if asked.Parameters != nil {
		values, err := unpacked(asked.Parameters)
		if err != nil {
			return answer{}, err
		}
		s.prepared.SetRecordReader(values)
	}
	info, err := s.prepared.Execute(ctx)
	return s.read(ctx, info, err)
}

func (s *session) closePrepared(ctx context.Context, _ request) (answer, error) {
	return answer{}, s.prepared.Close(ctx)
}

// cancelInfo starts a query, reads one batch, cancels by CancelFlightInfo, and reads the rest.
func (s *session) cancelInfo(ctx context.Context, asked request) (answer, error) {
	return s.cancelBy(ctx, asked, func(info *flight.FlightInfo) (string, error) {
		result, err := s.client.CancelFlightInfo(ctx, &flight.CancelFlightInfoRequest{Info: info})
		return result.GetStatus().String(), err
	})
}

// cancelQuery is like cancelInfo with the older action CancelQuery.
func (s *session) cancelQuery(ctx context.Context, asked request) (answer, error) {
	return s.cancelBy(ctx, asked, func(info *flight.FlightInfo) (string, error) {
		result, err := s.client.CancelQuery(ctx, info)
		return result.String(), err
	})
}

func (s *session) cancelBy(
	ctx context.Context, asked request, by func(*flight.FlightInfo) (string, error),
) (answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	info, err := s.client.Execute(ctx, asked.SQL)
	if err != nil {
		return answer{}, err
	}
	reader, err := s.client.DoGet(ctx, info.Endpoint[0].Ticket)
	if err != nil {
		return answer{}, err
	}
	defer reader.Release()
	reader.Next()
	began := time.Now()
	said, err := by(info)
	if err != nil {
		return answer{}, err
	}
	for reader.Next() {
	}
	tookMs := time.Since(began).Milliseconds()
	told := answer{Text: said, Rows: &tookMs}
	if reader.Err() != nil {
		told.Error = explained(reader.Err())
	}
	return told, nil
}

func (s *session) begin(ctx context.Context, _ request) (answer, error) {
	_, err := s.client.BeginTransaction(ctx)
	return answer{}, err
}

func (s *session) substrait(ctx context.Context, _ request) (answer, error) {
	plan := flightsql.SubstraitPlan{Plan: []byte{1}, Version: "0.6"}
	_, err := s.client.ExecuteSubstrait(ctx, plan)
	return answer{}, err
}

func (s *session) poll(ctx context.Context, asked request) (answer, error) {
	_, err := s.client.ExecutePoll(ctx, asked.SQL, nil)
	return answer{}, err
}

func (s *session) sessionOptions(ctx context.Context, _ request) (answer, error) {
	result, err := s.client.GetSessionOptions(ctx, &flight.GetSessionOptionsRequest{})
	return answer{Text: result.String()}, err
}

func (s *session) closeSession(ctx context.Context, _ request) (answer, error) {
	_, err := s.client.CloseSession(ctx, &flight.CloseSessionRequest{})
	return answer{}, err
}

func (s *session) renew(ctx context.Context, asked request) (answer, error) {
	info, err := s.client.Execute(ctx, asked.SQL)
	if err != nil {
		return answer{}, err
	}
	asks := &flight.RenewFlightEndpointRequest{Endpoint: info.Endpoint[0]}
	_, err = s.client.RenewFlightEndpoint(ctx, asks)
	return answer{}, err
}

// metadata asks the command that "mode" names, with the token in options.
func (s *session) metadata(ctx context.Context, asked request) (answer, error) {
	if token := asked.Options["token"]; token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	info, err := s.ask(ctx, asked)
	return s.read(ctx, info, err)
}

func (s *session) ask(ctx context.Context, asked request) (*flight.FlightInfo, error) {
	table := flightsql.TableRef{Catalog: asked.Catalog, DBSchema: asked.Schema}
	if asked.Table != nil {
		table.Table = *asked.Table
	}
	switch asked.Mode {
	case "catalogs":
		return s.client.GetCatalogs(ctx)
	case "schemas":
		return s.client.GetDBSchemas(ctx, &flightsql.GetDBSchemasOpts{
			Catalog: asked.Catalog, DbSchemaFilterPattern: asked.Schema})
	case "tables", "tables_with_schema":
		return s.client.GetTables(ctx, &flightsql.GetTablesOpts{
			Catalog: asked.Catalog, DbSchemaFilterPattern: asked.Schema,
			TableNameFilterPattern: asked.Table, TableTypes: asked.Types,
			IncludeSchema: asked.Mode == "tables_with_schema"})
	case "table_types":
		return s.client.GetTableTypes(ctx)
	case "primary_keys":
		return s.client.GetPrimaryKeys(ctx, table)
	case "exported_keys":
		return s.client.GetExportedKeys(ctx, table)
	case "imported_keys":
		return s.client.GetImportedKeys(ctx, table)
	case "cross_reference":
		return s.client.GetCrossReference(ctx, table, table)
	case "type_info":
		if len(asked.Codes) > 0 {
			kind := int32(asked.Codes[0])
			return s.client.GetXdbcTypeInfo(ctx, &kind)
		}
		return s.client.GetXdbcTypeInfo(ctx, nil)
	}
	codes := make([]flightsql.SqlInfo, len(asked.Codes))
	for at, code := range asked.Codes {
		codes[at] = flightsql.SqlInfo(code)
	}
	return s.client.GetSqlInfo(ctx, codes)
}

// metadataSchema asks for the schema alone; it must be the one of the answer.
func (s *session) metadataSchema(ctx context.Context, asked request) (answer, error) {
	var result *flight.SchemaResult
	var err error
	switch asked.Mode {
	case "catalogs":
		result, err = s.client.GetCatalogsSchema(ctx)
	case "schemas":
		result, err = s.client.GetDBSchemasSchema(ctx)
	case "tables", "tables_with_schema":
		result, err = s.client.GetTablesSchema(ctx, &flightsql.GetTablesOpts{
			IncludeSchema: asked.Mode == "tables_with_schema"})
	case "table_types":
		result, err = s.client.GetTableTypesSchema(ctx)
	case "primary_keys":
		result, err = s.client.GetPrimaryKeysSchema(ctx)
	case "exported_keys":
		result, err = s.client.GetExportedKeysSchema(ctx)
	case "imported_keys":
		result, err = s.client.GetImportedKeysSchema(ctx)
	case "cross_reference":
		result, err = s.client.GetCrossReferenceSchema(ctx)
	case "type_info":
		result, err = s.client.GetXdbcTypeInfoSchema(ctx)
	default:
		result, err = s.client.GetSqlInfoSchema(ctx)
	}
	return schemaOf(s, result, err)
}
