-- Define the limits of a fetch, and the sources that belong to no feature: the stream, and lists that are popped at
-- their right end. core/fetch.lua calls the sources in their order.

local ENTRY, FIELDS = G.rows.stream_entry.id, G.rows.stream_entry.fields

-- Jobs that one call rejects per source.
G.REJECTIONS_MAX = 100
-- A reply exceeds this size by one job at most: data of many MiB would block the server and the worker.
G.REPLY_BYTES = 4194304
-- Entries read at a time, so that few are fetched but not activated when the reply is full.
G.STREAM_PAGE = 16

-- Make the source of a place whose first jobs take(q, most) removes and returns.
G.source_of = function(take)
  return function(q, fetching, free)
    local budget = free + G.REJECTIONS_MAX
    for _ = 1, budget do
      if free <= 0 or budget <= 0 or fetching.bytes >= G.REPLY_BYTES then return false end
      local limit = math.min(free, G.STREAM_PAGE)
      local ids = take(q, limit)
      for i = 1, #ids do
        if G.activate(q, fetching, ids[i], '') then free = free - 1 end
        budget = budget - 1
      end
      if #ids < limit then return true end
    end
    return false
  end
end

-- Lists that are popped at their right end: LIFO jobs, and due priority jobs of Node peers.
G.sources.lifo = G.source_of(function(q, most) return redis.call('RPOP', q.lifo, most) or {} end)
G.sources.priority_list = G.source_of(function(q, most) return redis.call('RPOP', q.priority, most) or {} end)

-- Return whether the job of an entry that is not a plain one was fetched.
local function activate_entry(q, fetching, entry, fields)
  local id = G.entry_job(fields)
  if id then return G.activate(q, fetching, id, entry) end
  G.drop(fetching, nil, entry, 'a stream entry without a job id')
  return false
end

local function create(q, group, start) redis.call('XGROUP', 'CREATE', q.stream, group, start, 'MKSTREAM') end

G.sources.stream = function(q, fetching, free)
  local budget, activate_plain = free + G.REJECTIONS_MAX, fetching.reads_plain and G.activate_plain
  for _ = 1, budget do
    if free <= 0 or budget <= 0 or fetching.bytes >= G.REPLY_BYTES then return false end
    local limit = math.min(free, G.STREAM_PAGE)
    local entries = G.read_stream(q, G.GROUP, fetching.consumer, limit, '0', create)
    for i = 1, #entries do
      local entry, fields = entries[i][ENTRY], entries[i][FIELDS]
      if activate_plain and activate_plain(q, fetching, entry, fields) or activate_entry(q, fetching, entry, fields) then
        free = free - 1
      end
      budget = budget - 1
    end
    if #entries < limit then return true end
  end
  return false
end
