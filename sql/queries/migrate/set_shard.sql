-- Give this database the ids of one shard, and return whether it did not have them yet: see jobherd.set_shard in
-- schema/47_shards.sql. Run by `jobherd migrate --shard 2/4`.
SELECT jobherd.set_shard(%(shard)s::integer) AS is_new
