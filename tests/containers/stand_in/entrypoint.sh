# Creates the cluster at the first start, then becomes the postmaster.
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
data=/var/lib/postgresql/data
as="setpriv --reuid=postgres --regid=postgres --init-groups"
install --directory --owner=postgres /run/postgresql
if [ ! -s $data/PG_VERSION ]; then
    chown postgres $data
    $as "$bin/initdb" --pgdata $data --auth-local trust --auth-host scram-sha-256 --encoding UTF8 --locale C.UTF-8
    echo 'host all all all scram-sha-256' >> $data/pg_hba.conf
    $as "$bin/pg_ctl" --pgdata $data --options '-c listen_addresses=' --wait start
    printf "CREATE ROLE %s LOGIN PASSWORD '%s';\nCREATE DATABASE %s OWNER %s;\n" \
        "$POSTGRES_USER" "$POSTGRES_PASSWORD" "$POSTGRES_DB" "$POSTGRES_USER" | $as psql --no-psqlrc postgres
    $as "$bin/pg_ctl" --pgdata $data --wait stop
fi
exec $as "$bin/postgres" -D $data -c 'listen_addresses=*'
