-- Check limits before a fetch, and pop lists, for workers of the protocol.
-- glidemq_checkConcurrency: return the free slots of the queue.
--   KEYS 1 meta, 2 stream, 3 list-active   ARGV 1 group   -> free slots, or -1 = no limit
-- glidemq_rpopAndReserve: pop jobs of a list within the limit.
--   KEYS 1 meta, 2 stream, 3 list-active, 4 list   ARGV 1 group, 2 count (1)   -> ids
-- glidemq_popLists: pop jobs of the lists.
--   KEYS 1 priority, 2 lifo   ARGV 1 count (1)   -> ids; the caller adds them to list-active
-- Bound: 1,000 jobs.
local W = G.W

local POP_MAX = 1000

local function free_slots(keys, group)
  local limit = G.count_of(redis.call('HGET', keys[1], 'globalConcurrency'))
  if limit <= 0 then return -1 end
  local from_stream = G.pending_count(W.queue(keys[2], 'stream'), group or '')
  return math.max(0, limit - from_stream - G.count_of(redis.call('GET', keys[3])))
end

G.export('checkConcurrency', { 'no-writes' }, function(keys, args) return free_slots(keys, args[1]) end)

G.export('rpopAndReserve', { 'allow-oom' }, function(keys, args)
  local count, free = math.min(math.floor(G.num(args[2], 1)), POP_MAX), free_slots(keys, args[1])
  if free >= 0 then count = math.min(count, free) end
  if count <= 0 then return {} end
  local ids = W.pop(W.queue(keys[1], 'meta'), keys[4], count)
  if #ids > 0 then G.pcall('INCRBY', keys[3], #ids) end
  return ids
end)

G.export('popLists', { 'allow-oom' }, function(keys, args)
  local q, count = W.queue(keys[1], 'priority'), math.min(math.floor(G.num(args[1], 1)), POP_MAX)
  if count <= 0 then return {} end
  local ids = W.pop(q, keys[1], count)
  if #ids > 0 then return ids end
  return W.pop(q, keys[2], count)
end)
