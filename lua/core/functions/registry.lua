-- registry_add, registry_set, registry_touch: write keys that belong to no queue. These are functions because a bare
-- command with one key would create the key at the target of a migrating slot; a call with two declared keys returns
-- TRYAGAIN.
-- registry_add: KEYS 1 set          ARGV 1 packed members                        -> number of new members
-- registry_set: KEYS 1 hash         ARGV 1 packed {field, value, ...}            -> number of new fields
-- registry_touch: KEYS 1 sorted set   ARGV 1 packed {member, score, 'GT'|'NX', ttl ms; 0 = unchanged}   -> 1
-- Bound: the members given, 1,000 per command.

local CHUNK = 1000

local function write_in_chunks(command, key, values)
  local n = 0
  for i = 1, #values, CHUNK do
    n = n + redis.call(command, key, unpack(values, i, math.min(i + CHUNK - 1, #values)))
  end
  return n
end

G.export('registry_add', { 'allow-oom' }, function(key, r)
  return write_in_chunks('SADD', key, r.members)
end)

G.export('registry_set', { 'allow-oom' }, function(key, r)
  return write_in_chunks('HSET', key, r.fields)
end)

G.export('registry_touch', { 'allow-oom' }, function(key, r)
  redis.call('ZADD', key, r.mode == 'GT' and 'GT' or 'NX', G.int(r.score), r.member)
  if r.ttl > 0 then redis.call('PEXPIRE', key, G.int(r.ttl)) end
  return 1
end)
